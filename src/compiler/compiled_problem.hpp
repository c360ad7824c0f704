#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "scoremod/problem.hpp"

#include "compiler/derived_values.hpp"
#include "compiler/operand_reduction.hpp"
#include "masks/mask_class.hpp"

namespace scoremod::compiler {

/// The programs that a forward computes for each element.
struct CompiledForward {
  Program program;        ///< after the passes; same operands as the user's, same meaning
  masks::MaskClass mask;  ///< of `program`, whose nodes it names
};

/// The programs that a backward computes for each element.
struct CompiledBackward {
  /// Roots: value, keep, d_score and the operand adjoints of the forward's program, sharing nodes.
  Program program;
  masks::MaskClass mask;  ///< of `program`, whose nodes it names: they may have other numbers than the forward's
  /// One for each operand that has a gradient, in ascending order of operands.
  std::vector<OperandReduction> reductions;
};

/// A validated problem with everything that the compiler knows of it. Backends work from it.
struct CompiledProblem {
  /// The problem with the user's own program, to which the operands of other fields are added. Its lengths are in the
  /// mask, and no longer beside it.
  AttentionProblem problem;
  CompiledForward forward;
  std::optional<CompiledBackward> backward;  ///< present when the problem wants backward
  Derived derived;
};

/// Reuses the programs for a problem that differs from the compiled one in sizes, strides and scale alone. Facts about
/// the masks no longer depend on the old sizes, and the reductions have the new ones.
CompiledProblem resized(CompiledProblem compiled, AttentionProblem problem);

/// The compile of a valid problem whose structure_key() is that of the problem that was compiled: equal to compile()'s
/// result, without running it.
CompiledProblem at_sizes_of(AttentionProblem problem, const CompiledProblem& compiled);

}  // namespace scoremod::compiler
