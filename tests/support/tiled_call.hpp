#pragma once

#include <memory>
#include <span>

#include "backend/kernels/shared/tiled_variant.hpp"
#include "backend/kernels/workspace/call.hpp"

namespace scoremod::backend::kernels {

/// The variant of the three tiled families that has this shape.
std::shared_ptr<const TiledVariant> tiled_variant(const TileShape& shape);

/// The source of the attention kernels that have this shape.
inline KernelSource attention_source(const compiler::CompiledProblem& problem, Direction direction,
                                     const TileShape& shape, std::span<const OperandTarget> targets = {}) {
  return tiled_variant(shape)->source({problem, direction, targets});
}

}  // namespace scoremod::backend::kernels

namespace scoremod::test {

/// The calls of the attention kernels that have this shape.
inline backend::kernels::KernelCall attention_call(const compiler::CompiledProblem& problem,
                                                   backend::Direction direction,
                                                   const backend::kernels::TileShape& shape,
                                                   std::span<const backend::kernels::OperandTarget> targets = {}) {
  return {problem, direction, backend::kernels::tiled_variant(shape)->layout({problem, direction, targets})};
}

/// The calls of kernels that sum operand gradients and do nothing else.
inline backend::kernels::KernelCall operand_call(const compiler::CompiledProblem& problem,
                                                 std::span<const backend::kernels::OperandTarget> targets,
                                                 const backend::kernels::TileShape& shape) {
  return {problem, backend::Direction::kBackward, backend::kernels::operand_layout(problem, targets, shape)};
}

}  // namespace scoremod::test
