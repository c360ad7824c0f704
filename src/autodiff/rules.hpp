#pragma once

#include "autodiff/adjoint.hpp"
#include "ir/builder.hpp"

namespace scoremod::autodiff {

/// True when the op passes an adjoint on to its f32 arguments; false for leaves and where the derivative is zero.
bool is_differentiable(Op op);
/// Whether it passes one on to its argument number `arg`.
bool is_differentiable(Op op, std::size_t arg);

/// The contribution of node `id`, whose adjoint's value is `adjoint`, to its argument number `arg` (an f32). The op
/// must be differentiable.
Contribution contribution(ir::Builder& builder, NodeId id, NodeId adjoint, std::size_t arg);

}  // namespace scoremod::autodiff
