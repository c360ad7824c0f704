#pragma once

#include <optional>
#include <vector>

#include "ir/builder.hpp"

namespace scoremod::autodiff {

/// A bool node that must be true (holds) or false for an adjoint not to be zero.
struct Literal {
  NodeId condition = kNoNode;
  bool holds = true;
  /// The adjoint's value is zero wherever the literal fails, so that no select is needed to make it so.
  bool implied = false;
};

/// The adjoint of a node: `value` where every literal of `path` is met, exactly zero elsewhere.
///
/// Keeping the conditions beside the value, instead of writing select(c, g, 0) at once, is what keeps 0 * inf out of
/// gradients: the products with local derivatives are made under the conditions, and the select comes last, whatever
/// the product is where the branch was not taken. It costs nothing: as many selects, only later.
struct Adjoint {
  NodeId value = kNoNode;
  std::vector<Literal> path;
};

/// The adjoint that is `value` where `from` is not zero and, if given, `condition` is met. Empty when these exclude
/// each other.
std::optional<Adjoint> follow(ir::Builder& builder, const Adjoint& from, NodeId value,
                              const std::optional<Literal>& condition);

/// The sum. Parts under opposite conditions become one select without a condition. `parts` must not be empty.
Adjoint sum(ir::Builder& builder, std::vector<Adjoint> parts);

/// The adjoint as one f32 node.
NodeId materialize(ir::Builder& builder, const Adjoint& adjoint);

}  // namespace scoremod::autodiff
