#pragma once

#include <string>

#include "scoremod/sizes.hpp"

#include "c_structs/choices.hpp"

namespace scoremod::fuzz {

/// A small problem as JSON. It is of any kind: dense, with lengths, varlen, over pages, with open sizes, with a
/// backward. Some combinations are refused.
struct DrawnProblem {
  std::string json;
  Sizes sizes;  ///< all of them, those that it leaves open too
};

DrawnProblem draw_problem(Choices& choices);

}  // namespace scoremod::fuzz
