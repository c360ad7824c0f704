#include "autodiff/adjoint.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <unordered_map>
#include <utility>

namespace scoremod::autodiff {
namespace {

/// Longer paths are folded into one literal, so that a deep nest of selects costs linear memory.
constexpr std::size_t kMaxPath = 8;
/// A larger factor (or one whose inverse is larger) is multiplied in, so that it stays well inside f32.
constexpr double kMaxFactor = 0x1p100;

bool is_moderate(double factor) { return std::abs(factor) <= kMaxFactor && std::abs(factor) >= 1 / kMaxFactor; }

NodeId multiply(ir::Builder& builder, NodeId value, double factor) {
  const auto rounded = static_cast<float>(factor);
  if (rounded == 1) return value;
  if (rounded == -1) return builder.make(Op::kNeg, {value});
  return builder.make(Op::kMul, {value, builder.constant(rounded)});
}

void absorb_factor(ir::Builder& builder, Adjoint& adjoint) {
  adjoint.value = multiply(builder, adjoint.value, adjoint.factor);
  adjoint.factor = 1;
}

/// One bool node that is true where the whole path is met.
NodeId conjunction(ir::Builder& builder, const std::vector<Literal>& path) {
  NodeId all = kNoNode;
  for (const Literal& literal : path) {
    const NodeId term = literal.holds ? literal.condition : builder.make(Op::kNot, {literal.condition});
    all = all == kNoNode ? term : builder.make(Op::kAnd, {all, term});
  }
  return all == kNoNode ? builder.constant(true) : all;
}

/// The parts that share the path up to some depth and then depend on the same condition.
struct Group {
  Literal literal;
  std::vector<Adjoint> met, unmet;
};

class Sum {
 public:
  explicit Sum(ir::Builder& builder) : builder_(builder) {}

  /// Adds the values of parts whose paths are equal in their first `depth` literals; the result's path starts after
  /// these.
  Adjoint run(std::vector<Adjoint> parts, std::size_t depth) {
    if (parts.size() == 1) {
      Adjoint only = std::move(parts.front());
      only.factor = 1;
      only.path.erase(only.path.begin(), only.path.begin() + static_cast<std::ptrdiff_t>(depth));
      return only;
    }
    NodeId total = kNoNode;
    std::vector<Group> groups;
    std::unordered_map<NodeId, std::size_t> group_of;
    for (Adjoint& part : parts) {
      if (part.path.size() == depth) {
        total = add(total, part.value);
        continue;
      }
      const Literal literal = part.path[depth];
      const auto [found, is_new] = group_of.try_emplace(literal.condition, groups.size());
      if (is_new) groups.push_back({literal, {}, {}});
      Group& group = groups[found->second];
      group.literal.implied = group.literal.implied && literal.implied;
      (literal.holds ? group.met : group.unmet).push_back(std::move(part));
    }
    return combine(total, groups, depth);
  }

 private:
  Adjoint combine(NodeId total, std::vector<Group>& groups, std::size_t depth) {
    if (total == kNoNode && groups.size() == 1) return merge(groups.front(), depth);
    const bool always = total != kNoNode;
    std::vector<NodeId> conditions;
    for (Group& group : groups) {
      const Adjoint merged = merge(group, depth);
      total = add(total, materialize(builder_, merged));
      if (!always) conditions.push_back(conjunction(builder_, merged.path));
    }
    if (always) return {total, {}};
    NodeId any = conditions.front();
    for (const NodeId condition : std::span(conditions).subspan(1)) any = builder_.make(Op::kOr, {any, condition});
    return {total, {{any, true, true}}};
  }

  Adjoint merge(Group& group, std::size_t depth) {
    const NodeId condition = group.literal.condition;
    if (group.met.empty() || group.unmet.empty()) {
      const bool holds = group.unmet.empty();
      Adjoint inner = run(std::move(holds ? group.met : group.unmet), depth + 1);
      inner.path.insert(inner.path.begin(), {condition, holds, group.literal.implied});
      return inner;
    }
    const Adjoint met = run(std::move(group.met), depth + 1);
    const Adjoint unmet = run(std::move(group.unmet), depth + 1);
    const NodeId value =
        builder_.make(Op::kSelect, {condition, materialize(builder_, met), materialize(builder_, unmet)});
    if (met.path.empty() && unmet.path.empty()) return {value, {}};
    const NodeId either =
        builder_.make(Op::kSelect, {condition, conjunction(builder_, met.path), conjunction(builder_, unmet.path)});
    return {value, {{either, true, true}}};
  }

  NodeId add(NodeId total, NodeId value) { return total == kNoNode ? value : builder_.make(Op::kAdd, {total, value}); }

  ir::Builder& builder_;
};

/// Adds the factors of parts with the same value and path.
std::vector<Adjoint> add_multiples(std::vector<Adjoint> parts) {
  std::vector<Adjoint> distinct;
  std::unordered_map<NodeId, std::size_t> last_of;
  for (Adjoint& part : parts) {
    const auto [found, is_new] = last_of.try_emplace(part.value, distinct.size());
    if (!is_new) {
      Adjoint& same = distinct[found->second];
      const double factor = same.factor + part.factor;
      // Multiples that cancel stay apart: x - x is not zero for every x.
      if (same.path == part.path && is_moderate(factor)) {
        same.factor = factor;
        continue;
      }
      found->second = distinct.size();
    }
    distinct.push_back(std::move(part));
  }
  return distinct;
}

}  // namespace

std::optional<Adjoint> follow(ir::Builder& builder, const Adjoint& from, const Contribution& sent) {
  Adjoint next{sent.value, from.path, from.factor * sent.factor};
  if (!is_moderate(next.factor)) next = {multiply(builder, sent.value, from.factor), from.path, sent.factor};
  // A product with a local derivative may turn a zero into NaN: from here on the select is needed.
  if (sent.value != from.value) {
    for (Literal& literal : next.path) literal.implied = false;
  }
  if (!sent.condition) return next;
  const auto known = std::ranges::find(next.path, sent.condition->condition, &Literal::condition);
  if (known != next.path.end()) {
    if (known->holds != sent.condition->holds) return std::nullopt;
    return next;
  }
  if (next.path.size() >= kMaxPath) next.path = {{conjunction(builder, next.path), true, false}};
  next.path.push_back(*sent.condition);
  return next;
}

Adjoint sum(ir::Builder& builder, std::vector<Adjoint> parts) {
  parts = add_multiples(std::move(parts));
  const double factor = parts.front().factor;
  const bool common = std::ranges::all_of(parts, [&](const Adjoint& part) { return part.factor == factor; });
  if (!common) {
    for (Adjoint& part : parts) absorb_factor(builder, part);
  }
  Adjoint total = Sum(builder).run(std::move(parts), 0);
  total.factor = common ? factor : 1;
  return total;
}

NodeId materialize(ir::Builder& builder, const Adjoint& adjoint) {
  NodeId value = multiply(builder, adjoint.value, adjoint.factor);
  // The last literal, a condition inside the earlier ones, becomes the innermost select.
  for (auto literal = adjoint.path.rbegin(); literal != adjoint.path.rend(); ++literal) {
    if (literal->implied) continue;
    const NodeId zero = builder.constant(0.0f);
    value = literal->holds ? builder.make(Op::kSelect, {literal->condition, value, zero})
                           : builder.make(Op::kSelect, {literal->condition, zero, value});
  }
  return value;
}

}  // namespace scoremod::autodiff
