#pragma once

#include <span>

#include "backend/kernels/kernel_source.hpp"
#include "backend/kernels/operand_target.hpp"
#include "backend/kernels/operand_text.hpp"
#include "backend/kernels/tile_shape.hpp"
#include "backend/kernels/tiled_variant.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::kernels {

/// The source of one direction's kernels. It has the program, the dtype, the head dims and the shape in it, and neither
/// sizes nor strides: problems that differ in these alone have the same source. `targets`, of a backward, are
/// operand_targets() whose gradients these kernels sum or write too.
KernelSource attention_source(const compiler::CompiledProblem& problem, Direction direction, const TileShape& shape,
                              std::span<const OperandTarget> targets = {});

/// As above, with these files for kernels.
KernelSource tiled_source(const Work& work, const TileShape& shape, const KernelFiles& files);

/// Fills the holes that all kernels of a direction have: settings, the program and the mask.
void fill_attention(Holes& holes, const compiler::CompiledProblem& problem, Direction direction, const TileShape& shape,
                    const OperandText& operands, Gains gains);
/// The kernels that classify tiles by the mask and put rows in order; none where tiles' indices tell.
std::vector<std::string_view> tile_state_files(const compiler::CompiledProblem& problem, Direction direction);

}  // namespace scoremod::backend::kernels
