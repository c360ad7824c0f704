#pragma once

#include <array>
#include <vector>

#include "scoremod/program.hpp"

namespace scoremod::analysis {

/// The indices and inputs that a node's value depends on.
struct Dependence {
  std::array<bool, kAxisCount> axes{};
  bool score = false;  ///< the score or the upstream gradient

  bool on(Axis axis) const { return axes[static_cast<std::size_t>(axis)]; }
  bool operator==(const Dependence&) const = default;
};

/// One for each node of the program.
std::vector<Dependence> dependences(const Program& program);

}  // namespace scoremod::analysis
