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

  bool operator==(const Literal&) const = default;
};

/// The adjoint of a node: `factor * value` where every literal of `path` is met, exactly zero elsewhere.
///
/// The conditions stay beside the value, in place of select(c, g, 0) at once, to keep 0 * inf out of gradients.
/// Products with local derivatives are made first, and the select comes last and drops branches that were not taken. It
/// costs nothing: as many selects, only later.
///
/// Keeping constant factors apart lets them cancel: cap * tanh(score / cap) has the derivative 1 - t * t, without the
/// cap.
struct Adjoint {
  NodeId value = kNoNode;
  std::vector<Literal> path;
  double factor = 1;
};

/// One term of an argument's adjoint: `factor * value`, under `condition` when there is one. `value` is made from the
/// node's adjoint, and the adjoint's factor and path come on top.
struct Contribution {
  NodeId value = kNoNode;
  std::optional<Literal> condition;
  double factor = 1;
};

/// The adjoint that `sent`, made from the adjoint `from`, amounts to. Empty when their conditions exclude each other.
std::optional<Adjoint> follow(ir::Builder& builder, const Adjoint& from, const Contribution& sent);

/// The sum. Multiples of one value become one multiple, parts under opposite conditions one select without a condition.
/// `parts` must not be empty.
Adjoint sum(ir::Builder& builder, std::vector<Adjoint> parts);

/// The adjoint as one f32 node.
NodeId materialize(ir::Builder& builder, const Adjoint& adjoint);

}  // namespace scoremod::autodiff
