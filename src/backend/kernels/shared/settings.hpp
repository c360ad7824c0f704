#pragma once

#include "backend/kernels/mask/mask_knowledge.hpp"
#include "backend/kernels/operand_gradients/operand_text.hpp"
#include "backend/kernels/shared/tile_shape.hpp"
#include "backend/kernels/text/kernel_source.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::kernels {

/// Fills the holes of shared/settings.cuh, the constants of a direction's kernels.
void fill_settings(Holes& holes, const compiler::CompiledProblem& compiled, const TileShape& shape,
                   const MaskKnowledge& mask, const OperandText& operands);

}  // namespace scoremod::backend::kernels
