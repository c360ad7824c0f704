#pragma once

#include <span>

#include "backend/kernels/kernel_call.hpp"
#include "backend/kernels/tiled_layout.hpp"
#include "backend/kernels/tiled_variant.hpp"

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
