#pragma once

#include <optional>

#include "scoremod/problem.hpp"

#include "masks/mask_class.hpp"

namespace scoremod::compiler {

/// A validated problem with everything that the compiler knows of it. What backends work from.
struct CompiledProblem {
  AttentionProblem problem;  ///< with the user's own program
  Program program;           ///< after the passes; same operands, same meaning
  /// Roots: value, keep, d_score and the operand adjoints of `program`, sharing nodes. Present when the problem wants
  /// backward.
  std::optional<Program> derivative;
  masks::MaskClass mask;  ///< of `program`
};

}  // namespace scoremod::compiler
