#pragma once

#include <memory>
#include <span>
#include <variant>

#include "backend/kernels/backend/kernels_backend.hpp"
#include "backend/kernels/family.hpp"
#include "backend/kernels/float8/family.hpp"
#include "backend/kernels/hopper/family.hpp"
#include "backend/kernels/portable/family.hpp"
#include "backend/kernels/shared/tiled_variant.hpp"
#include "backend/kernels/split_kv/family.hpp"

namespace scoremod::backend::kernels {

/// A shape of the four tiled families, or a variant that none of them has.
using AnyShape = std::variant<PortableShape, HopperShape, SplitKvShape, Float8Shape, std::shared_ptr<const Variant>>;

/// The variant that has this shape.
std::shared_ptr<const Variant> tiled_variant(const AnyShape& shape);
/// The part that all families' shapes have, and what else texts and keys say of a shape. An own variant has neither.
const TileShape& tile_of(const AnyShape& shape);
KernelTraits traits_of(const AnyShape& shape);

/// The source of the attention kernels that have this shape.
inline KernelSource attention_source(const compiler::CompiledProblem& problem, Direction direction,
                                     const AnyShape& shape, std::span<const OperandTarget> targets = {}) {
  return tiled_variant(shape)->source({problem, direction, targets});
}

}  // namespace scoremod::backend::kernels

namespace scoremod::test {

/// The calls of the attention kernels that have this shape.
inline backend::kernels::KernelCall attention_call(const compiler::CompiledProblem& problem,
                                                   backend::Direction direction,
                                                   const backend::kernels::AnyShape& shape,
                                                   std::span<const backend::kernels::OperandTarget> targets = {}) {
  return {problem, direction, backend::kernels::tiled_variant(shape)->layout({problem, direction, targets})};
}

/// The calls of kernels that sum operand gradients and do nothing else.
inline backend::kernels::KernelCall operand_call(const compiler::CompiledProblem& problem,
                                                 std::span<const backend::kernels::OperandTarget> targets,
                                                 const backend::kernels::PortableShape& shape) {
  return {problem, backend::Direction::kBackward, backend::kernels::operand_layout(problem, targets, shape)};
}

}  // namespace scoremod::test
