#include "masks/mask_formula.hpp"

#include <cmath>
#include <limits>

#include "analysis/floor_div.hpp"
#include "analysis/keep_nodes.hpp"
#include "ir/builder.hpp"

namespace scoremod::masks {
namespace {

/// A number with more cases than this counts as not known; abs of a min of a max has 8.
constexpr std::size_t kMaxCases = 8;
constexpr std::size_t kMaxAddends = 4;
/// Factors and constants stay so small that a range of kMaxAddends addends cannot overflow 64 bits.
constexpr std::int64_t kMaxFactor = std::int64_t{1} << 28;
constexpr std::int64_t kMaxConstant = std::int64_t{1} << 60;
constexpr std::int64_t kMaxExactFloat = std::int64_t{1} << 24;

}  // namespace

MaskFormula::MaskFormula(const Program& program, std::int64_t index_limit)
    : program_(program), truth_(program.nodes().size()), cases_(program.nodes().size()) {
  ranges_.push_back({0, 0});
  for (int i = 0; i < kAxisCount; ++i) {
    logic_.variable(0, index_limit - 1);
    ranges_.push_back({0, index_limit - 1});
  }
  nodes_.resize(ranges_.size(), kNoNode);
  const std::vector<bool> needed = analysis::keep_nodes(program);
  for (NodeId id = 0; id < program.nodes().size(); ++id) {
    if (needed[id]) visit(id);
  }
}

void MaskFormula::visit(NodeId id) {
  const Node& node = program_.nodes()[id];
  if (node.type == Type::kBool) {
    truth_[id] = truth_of(id, node);
    return;
  }
  Cases cases = cases_of(id, node);
  const bool usable = !cases.empty() && cases.size() <= kMaxCases && is_exact(cases, node.type);
  cases_[id] = usable ? std::move(cases) : opaque(id, node);
}

FormulaRef MaskFormula::truth_of(NodeId id, const Node& node) {
  const auto arg = [&](std::size_t i) { return truth_[node.args[i]]; };
  const bool from_bool = node.arg_count > 0 && program_.nodes()[node.args[0]].type == Type::kBool;
  switch (node.op) {
    case Op::kConstant: return DifferenceLogic::constant(ir::constant_bool(node));
    case Op::kAnd: return logic_.both(arg(0), arg(1));
    case Op::kOr: return logic_.either(arg(0), arg(1));
    case Op::kXor: return logic_.differ(arg(0), arg(1));
    case Op::kNot: return !arg(0);
    case Op::kSelect: return logic_.choose(arg(0), arg(1), arg(2));
    case Op::kEq:
      if (from_bool) return !logic_.differ(arg(0), arg(1));
      return comparison(id, node);
    case Op::kNe:
      if (from_bool) return logic_.differ(arg(0), arg(1));
      return comparison(id, node);
    case Op::kLt:
    case Op::kLe:
    case Op::kGt:
    case Op::kGe:
    case Op::kToBool: return from_bool ? arg(0) : comparison(id, node);
    default: return logic_.free(id);
  }
}

/// A comparison, or bool(x) as x != 0: for each pair of cases, that pair's guards and comparison.
FormulaRef MaskFormula::comparison(NodeId id, const Node& node) {
  const bool is_test = node.op == Op::kToBool;
  const Cases& left = cases_[node.args[0]];
  const Cases zero = single({});
  const Cases& right = is_test ? zero : cases_[node.args[1]];
  if (left.empty() || right.empty()) return logic_.free(id);
  FormulaRef any = DifferenceLogic::constant(false);
  for (const Case& x : left) {
    for (const Case& y : right) {
      const auto holds = compare(is_test ? Op::kNe : node.op, x.value, y.value);
      if (!holds) return logic_.free(id);
      any = logic_.either(any, logic_.both(logic_.both(x.guard, y.guard), *holds));
    }
  }
  return any;
}

std::optional<FormulaRef> MaskFormula::compare(Op op, const Linear& x, const Linear& y) {
  // The comparison itself has no difference that could wrap, so that any in 64 bits will do.
  auto above = sum(x, y, -1);
  auto below = sum(y, x, -1);
  if (!above || !below) return std::nullopt;
  const auto at_most = not_positive(*above);
  const auto at_least = not_positive(*below);
  if (!at_most || !at_least) return std::nullopt;
  switch (op) {
    case Op::kEq: return logic_.both(*at_most, *at_least);
    case Op::kNe: return !logic_.both(*at_most, *at_least);
    case Op::kLt: return !*at_least;
    case Op::kLe: return at_most;
    case Op::kGt: return !*at_most;
    default: return at_least;
  }
}

std::optional<FormulaRef> MaskFormula::not_positive(const Linear& linear) {
  const Range all = range(linear);
  if (all.last <= 0) return DifferenceLogic::constant(true);
  if (all.first > 0) return DifferenceLogic::constant(false);
  const auto& addends = linear.addends;
  if (addends.size() > 2 || (addends.size() == 2 && addends[0].factor != -addends[1].factor)) return std::nullopt;
  const std::int64_t factor = std::abs(addends[0].factor);
  const std::int64_t bound = analysis::floor_div(-linear.constant, factor);
  const Variable other = addends.size() == 2 ? addends[1].variable : DifferenceLogic::kZero;
  if (addends[0].factor > 0) return logic_.at_most(addends[0].variable, other, bound);
  return logic_.at_most(other, addends[0].variable, bound);
}

MaskFormula::Cases MaskFormula::cases_of(NodeId id, const Node& node) {
  switch (node.op) {
    case Op::kBatchIdx:
    case Op::kHeadIdx:
    case Op::kQueryIdx:
    case Op::kKeyIdx: {
      const auto place = static_cast<std::uint32_t>(node.op) - static_cast<std::uint32_t>(Op::kBatchIdx);
      return single({{{axis(static_cast<Axis>(place)), 1}}, 0});
    }
    case Op::kConstant: return constant_cases(node);
    case Op::kAdd:
    case Op::kSub:
    case Op::kMul:
    case Op::kNeg: return arithmetic(node);
    case Op::kMin:
    case Op::kMax: return extremum(node);
    case Op::kAbs: return magnitude(node);
    case Op::kSign: return sign(node);
    case Op::kSelect: return selection(node);
    case Op::kToF32:
    case Op::kToI32: {
      if (program_.nodes()[node.args[0]].type != Type::kBool) return cases_[node.args[0]];
      const FormulaRef truth = truth_[node.args[0]];
      return {{truth, {{}, 1}}, {!truth, {{}, 0}}};
    }
    default: return opaque(id, node);
  }
}

MaskFormula::Cases MaskFormula::constant_cases(const Node& node) {
  if (node.type == Type::kI32) return single({{}, ir::constant_i32(node)});
  const float value = ir::constant_f32(node);
  if (!(std::abs(value) <= static_cast<float>(kMaxExactFloat)) || std::trunc(value) != value) return {};
  return single({{}, static_cast<std::int64_t>(value)});
}

MaskFormula::Cases MaskFormula::arithmetic(const Node& node) {
  Cases out;
  const Cases negated = single({});
  // -x is 0 - x.
  const Cases& left = node.op == Op::kNeg ? negated : cases_[node.args[0]];
  const Cases& right = cases_[node.args[node.op == Op::kNeg ? 0 : 1]];
  if (left.size() * right.size() > kMaxCases) return {};
  for (const Case& x : left) {
    for (const Case& y : right) {
      std::optional<Linear> value;
      if (node.op != Op::kMul) {
        value = sum(x.value, y.value, node.op == Op::kAdd ? 1 : -1);
      } else if (y.value.addends.empty()) {
        value = scaled(x.value, y.value.constant);
      } else if (x.value.addends.empty()) {
        value = scaled(y.value, x.value.constant);
      }
      if (!value) return {};
      out.push_back({logic_.both(x.guard, y.guard), *value});
    }
  }
  return out;
}

MaskFormula::Cases MaskFormula::extremum(const Node& node) {
  Cases out;
  const Cases& left = cases_[node.args[0]];
  const Cases& right = cases_[node.args[1]];
  if (left.size() * right.size() * 2 > kMaxCases) return {};
  for (const Case& x : left) {
    for (const Case& y : right) {
      const auto takes_x = compare(node.op == Op::kMin ? Op::kLe : Op::kGe, x.value, y.value);
      if (!takes_x) return {};
      const FormulaRef guard = logic_.both(x.guard, y.guard);
      out.push_back({logic_.both(guard, *takes_x), x.value});
      out.push_back({logic_.both(guard, !*takes_x), y.value});
    }
  }
  return out;
}

MaskFormula::Cases MaskFormula::magnitude(const Node& node) {
  Cases out;
  for (const Case& x : cases_[node.args[0]]) {
    const auto is_negative = compare(Op::kLt, x.value, {});
    const auto opposite = scaled(x.value, -1);
    if (!is_negative || !opposite) return {};
    out.push_back({logic_.both(x.guard, !*is_negative), x.value});
    out.push_back({logic_.both(x.guard, *is_negative), *opposite});
  }
  return out;
}

MaskFormula::Cases MaskFormula::sign(const Node& node) {
  Cases out;
  for (const Case& x : cases_[node.args[0]]) {
    const auto is_negative = compare(Op::kLt, x.value, {});
    const auto is_positive = compare(Op::kGt, x.value, {});
    if (!is_negative || !is_positive) return {};
    out.push_back({logic_.both(x.guard, *is_positive), {{}, 1}});
    out.push_back({logic_.both(x.guard, *is_negative), {{}, -1}});
    out.push_back({logic_.both(x.guard, logic_.both(!*is_negative, !*is_positive)), {{}, 0}});
  }
  return out;
}

MaskFormula::Cases MaskFormula::selection(const Node& node) {
  const FormulaRef condition = truth_[node.args[0]];
  Cases out;
  if (cases_[node.args[1]].empty() || cases_[node.args[2]].empty()) return out;
  for (const Case& x : cases_[node.args[1]]) out.push_back({logic_.both(condition, x.guard), x.value});
  for (const Case& y : cases_[node.args[2]]) out.push_back({logic_.both(!condition, y.guard), y.value});
  return out;
}

MaskFormula::Cases MaskFormula::opaque(NodeId id, const Node& node) {
  if (node.type != Type::kI32) return {};
  using Limits = std::numeric_limits<std::int32_t>;
  const Variable v = logic_.variable(Limits::min(), Limits::max());
  ranges_.push_back({Limits::min(), Limits::max()});
  nodes_.push_back(id);
  return single({{{v, 1}}, 0});
}

std::optional<MaskFormula::Linear> MaskFormula::sum(const Linear& x, const Linear& y, std::int64_t factor) {
  Linear out;
  out.constant = x.constant + factor * y.constant;
  auto a = x.addends.begin();
  auto b = y.addends.begin();
  while (a != x.addends.end() || b != y.addends.end()) {
    Linear::Addend next;
    if (b == y.addends.end() || (a != x.addends.end() && a->variable < b->variable)) {
      next = *a++;
    } else if (a == x.addends.end() || b->variable < a->variable) {
      next = {b->variable, factor * b->factor};
      ++b;
    } else {
      next = {a->variable, a->factor + factor * b->factor};
      ++a;
      ++b;
    }
    if (std::abs(next.factor) > kMaxFactor) return std::nullopt;
    if (next.factor != 0) out.addends.push_back(next);
  }
  if (out.addends.size() > kMaxAddends || std::abs(out.constant) > kMaxConstant) return std::nullopt;
  return out;
}

std::optional<MaskFormula::Linear> MaskFormula::scaled(const Linear& x, std::int64_t factor) {
  if (factor == 0) return Linear{};
  if (std::abs(factor) > kMaxFactor || std::abs(x.constant) > kMaxConstant / kMaxFactor) return std::nullopt;
  Linear out = x;
  out.constant *= factor;
  for (Linear::Addend& addend : out.addends) {
    addend.factor *= factor;
    if (std::abs(addend.factor) > kMaxFactor) return std::nullopt;
  }
  return out;
}

MaskFormula::Range MaskFormula::range(const Linear& x) const {
  Range out{x.constant, x.constant};
  for (const Linear::Addend& addend : x.addends) {
    const Range& r = ranges_[addend.variable];
    out.first += addend.factor * (addend.factor > 0 ? r.first : r.last);
    out.last += addend.factor * (addend.factor > 0 ? r.last : r.first);
  }
  return out;
}

bool MaskFormula::is_exact(const Cases& cases, Type type) const {
  using Limits = std::numeric_limits<std::int32_t>;
  const std::int64_t lowest = type == Type::kI32 ? Limits::min() : -kMaxExactFloat;
  const std::int64_t highest = type == Type::kI32 ? Limits::max() : kMaxExactFloat;
  for (const Case& c : cases) {
    const Range r = range(c.value);
    if (r.first < lowest || r.last > highest) return false;
  }
  return true;
}

}  // namespace scoremod::masks
