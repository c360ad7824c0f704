#pragma once

#include <span>

#include "backend/kernels/family.hpp"
#include "backend/kernels/operand_gradients/operand_gradients.hpp"
#include "backend/kernels/shared/tile_shape.hpp"
#include "backend/kernels/shared/tiled_variant.hpp"
#include "backend/kernels/text/kernel_source.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::kernels {

/// The source of a direction's kernels, which these files have. It has the program, the dtype, the head dims and the
/// shape in it, and neither sizes nor strides: problems that differ in these alone have the same source.
KernelSource tiled_source(const Work& work, const TileShape& shape, const KernelFiles& files);

/// Fills the holes that all kernels of a direction have: settings, the program and the mask.
void fill_attention(Holes& holes, const compiler::CompiledProblem& problem, Direction direction, const TileShape& shape,
                    const OperandText& operands, Gains gains);
/// The kernels that classify tiles by the mask and put rows in order; none where tiles' indices tell.
Module block_mask_files(const compiler::CompiledProblem& problem, Direction direction);

}  // namespace scoremod::backend::kernels
