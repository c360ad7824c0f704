#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scoremod/attention.hpp"
#include "scoremod/inputs.hpp"

namespace scoremod::checking {

/// A problem with everything that a check of it needs.
struct CheckCase {
  std::string name;
  AttentionProblem problem;
  CallOptions call = {};
  std::vector<FillOverride> fills = {};  ///< where the default fill does not suit
  std::uint64_t seed = 0;                ///< of the inputs
};

}  // namespace scoremod::checking
