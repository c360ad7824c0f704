#pragma once

#include <memory>

#include "backend/cpu/vector_program.hpp"
#include "compiler/compiled_problem.hpp"
#include "masks/tile_mask_analyzer.hpp"

namespace scoremod::backend::cpu {

// Plans make these of a problem's programs. One serves all sizes of a structure, if the problem has derived values.

/// The vectorized program of the forward.
std::shared_ptr<const VectorProgram> forward_program(const compiler::CompiledProblem& problem);
/// That of the backward, which the problem has.
std::shared_ptr<const VectorProgram> backward_program(const compiler::CompiledProblem& problem);
/// The analyzer of the forward's mask.
std::shared_ptr<const masks::TileMaskAnalyzer> mask_analyzer(const compiler::CompiledProblem& problem);

/// A copy that a plan keeps and never changes, and so may have the derived values, too.
compiler::CompiledProblem kept_copy(const compiler::CompiledProblem& problem);

}  // namespace scoremod::backend::cpu
