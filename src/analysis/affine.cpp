#include "analysis/affine.hpp"

#include <cmath>
#include <limits>

#include "ir/builder.hpp"

namespace scoremod::analysis {
namespace {

// Four factors of 2^28 times indices below 2^31, plus a constant of 2^60, stay below 2^63.
constexpr std::int64_t kMaxFactor = std::int64_t{1} << 28;
constexpr std::int64_t kMaxConstant = std::int64_t{1} << 60;
constexpr std::int64_t kMaxExactFloat = std::int64_t{1} << 24;

std::optional<AffineForm> bounded(const AffineForm& form) {
  for (const std::int64_t factor : form.factor) {
    if (factor > kMaxFactor || factor < -kMaxFactor) return std::nullopt;
  }
  if (form.constant > kMaxConstant || form.constant < -kMaxConstant) return std::nullopt;
  return form;
}

std::optional<AffineForm> combined(const AffineForm& x, const AffineForm& y, std::int64_t sign) {
  AffineForm out = x;
  for (std::size_t i = 0; i < out.factor.size(); ++i) out.factor[i] += sign * y.factor[i];
  out.constant += sign * y.constant;
  return bounded(out);
}

std::optional<AffineForm> constant_form(const Node& node) {
  AffineForm out;
  if (node.type == Type::kI32) {
    out.constant = ir::constant_i32(node);
    return out;
  }
  if (node.type != Type::kF32) return std::nullopt;
  const float value = ir::constant_f32(node);
  if (!(std::abs(value) <= static_cast<float>(kMaxExactFloat)) || std::trunc(value) != value) return std::nullopt;
  out.constant = static_cast<std::int64_t>(value);
  return out;
}

std::optional<AffineForm> axis_form(Axis axis) {
  AffineForm out;
  out.factor[static_cast<std::size_t>(axis)] = 1;
  return out;
}

using Forms = std::vector<std::optional<AffineForm>>;

std::optional<AffineForm> binary_form(const Node& node, const Forms& forms) {
  const auto& x = forms[node.args[0]];
  const auto& y = forms[node.args[1]];
  if (!x || !y) return std::nullopt;
  switch (node.op) {
    case Op::kAdd: return sum(*x, *y);
    case Op::kSub: return difference(*x, *y);
    default:
      if (y->is_constant()) return scaled(*x, y->constant);
      return x->is_constant() ? scaled(*y, x->constant) : std::nullopt;
  }
}

std::optional<AffineForm> form_of(const Program& program, const Node& node, const Forms& forms) {
  switch (node.op) {
    case Op::kBatchIdx: return axis_form(Axis::kBatch);
    case Op::kHeadIdx: return axis_form(Axis::kHead);
    case Op::kQueryIdx: return axis_form(Axis::kQuery);
    case Op::kKeyIdx: return axis_form(Axis::kKey);
    case Op::kConstant: return constant_form(node);
    case Op::kAdd:
    case Op::kSub:
    case Op::kMul: return binary_form(node, forms);
    case Op::kNeg: return forms[node.args[0]] ? scaled(*forms[node.args[0]], -1) : std::nullopt;
    case Op::kToF32:
    case Op::kToI32: return program.nodes()[node.args[0]].type == Type::kBool ? std::nullopt : forms[node.args[0]];
    default: return std::nullopt;
  }
}

}  // namespace

std::optional<AffineForm> sum(const AffineForm& x, const AffineForm& y) { return combined(x, y, 1); }
std::optional<AffineForm> difference(const AffineForm& x, const AffineForm& y) { return combined(x, y, -1); }

std::optional<AffineForm> scaled(const AffineForm& x, std::int64_t factor) {
  if (factor > kMaxFactor || factor < -kMaxFactor) return std::nullopt;
  if (std::abs(x.constant) > kMaxConstant >> 28) return std::nullopt;
  AffineForm out = x;
  for (std::int64_t& f : out.factor) f *= factor;
  out.constant *= factor;
  return bounded(out);
}

IndexRange range_over(const AffineForm& form, const IndexBox& box) {
  IndexRange out{form.constant, form.constant};
  for (std::size_t i = 0; i < form.factor.size(); ++i) {
    const std::int64_t factor = form.factor[i];
    out.first += factor * (factor >= 0 ? box[i].first : box[i].last);
    out.last += factor * (factor >= 0 ? box[i].last : box[i].first);
  }
  return out;
}

bool is_exact(const IndexRange& range, Type type) {
  using Limits = std::numeric_limits<std::int32_t>;
  if (type == Type::kI32) return range.first >= Limits::min() && range.last <= Limits::max();
  return range.first >= -kMaxExactFloat && range.last <= kMaxExactFloat;
}

std::vector<std::optional<AffineForm>> affine_forms(const Program& program) {
  Forms forms;
  forms.reserve(program.nodes().size());
  for (const Node& node : program.nodes()) forms.push_back(form_of(program, node, forms));
  return forms;
}

}  // namespace scoremod::analysis
