#include "backend/reference/strip_evaluator.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <type_traits>

#include "base/element.hpp"
#include "base/fail.hpp"
#include "ir/builder.hpp"
#include "ir/scalar_functions.hpp"

namespace scoremod::backend::reference {
namespace {

/// An argument's lanes in one of the three types.
template <class T>
struct Argument {
  const T* data;
  std::size_t step;
};

template <class T>
Argument<T> argument(const Lanes& lanes) {
  if constexpr (std::is_same_v<T, double>) return {lanes.f, lanes.step};
  if constexpr (std::is_same_v<T, std::int32_t>) return {lanes.i, lanes.step};
  if constexpr (std::is_same_v<T, std::uint8_t>) return {lanes.b, lanes.step};
}

template <class T, class Out, class Function>
void map(const Lanes& x, std::size_t count, Out* out, const Function& function) {
  const auto [data, step] = argument<T>(x);
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<Out>(function(data[i * step]));
}

template <class T, class Out, class Function>
void map(const Lanes& x, const Lanes& y, std::size_t count, Out* out, const Function& function) {
  const auto [a, a_step] = argument<T>(x);
  const auto [b, b_step] = argument<T>(y);
  if (a_step == 1 && b_step == 1) {
    for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<Out>(function(a[i], b[i]));
  } else if (a_step == 1) {
    for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<Out>(function(a[i], *b));
  } else {
    for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<Out>(function(a[i * a_step], b[i * b_step]));
  }
}

template <class T>
void select(const Lanes& condition, const Lanes& x, const Lanes& y, std::size_t count, T* out) {
  const auto [a, a_step] = argument<T>(x);
  const auto [b, b_step] = argument<T>(y);
  for (std::size_t i = 0; i < count; ++i) out[i] = condition.b[i * condition.step] != 0 ? a[i * a_step] : b[i * b_step];
}

/// Calls body with the op as a constant, so that the choice of a function is made once for a strip.
template <class Body>
void with_constant(Op op, const Body& body) {
  const auto call = [&]<Op kOp>() { body(std::integral_constant<Op, kOp>()); };
  switch (op) {
#define SCOREMOD_CASE(name) \
  case Op::name: return call.template operator()<Op::name>()
    SCOREMOD_CASE(kAdd);
    SCOREMOD_CASE(kSub);
    SCOREMOD_CASE(kMul);
    SCOREMOD_CASE(kDiv);
    SCOREMOD_CASE(kFloorDiv);
    SCOREMOD_CASE(kMod);
    SCOREMOD_CASE(kPow);
    SCOREMOD_CASE(kAtan2);
    SCOREMOD_CASE(kMin);
    SCOREMOD_CASE(kMax);
    SCOREMOD_CASE(kNeg);
    SCOREMOD_CASE(kAbs);
    SCOREMOD_CASE(kSign);
    SCOREMOD_CASE(kFloor);
    SCOREMOD_CASE(kCeil);
    SCOREMOD_CASE(kRound);
    SCOREMOD_CASE(kExp);
    SCOREMOD_CASE(kExp2);
    SCOREMOD_CASE(kExpm1);
    SCOREMOD_CASE(kLog);
    SCOREMOD_CASE(kLog1p);
    SCOREMOD_CASE(kSqrt);
    SCOREMOD_CASE(kRsqrt);
    SCOREMOD_CASE(kReciprocal);
    SCOREMOD_CASE(kSin);
    SCOREMOD_CASE(kCos);
    SCOREMOD_CASE(kTan);
    SCOREMOD_CASE(kAtan);
    SCOREMOD_CASE(kTanh);
    SCOREMOD_CASE(kSigmoid);
    SCOREMOD_CASE(kErf);
    SCOREMOD_CASE(kErfc);
    SCOREMOD_CASE(kSoftplus);
    SCOREMOD_CASE(kRelu);
    SCOREMOD_CASE(kGelu);
    SCOREMOD_CASE(kGeluTanh);
    SCOREMOD_CASE(kSilu);
    SCOREMOD_CASE(kEq);
    SCOREMOD_CASE(kNe);
    SCOREMOD_CASE(kLt);
    SCOREMOD_CASE(kLe);
    SCOREMOD_CASE(kGt);
    SCOREMOD_CASE(kGe);
    SCOREMOD_CASE(kAnd);
    SCOREMOD_CASE(kOr);
    SCOREMOD_CASE(kXor);
    SCOREMOD_CASE(kNot);
    SCOREMOD_CASE(kSurrogate);
#undef SCOREMOD_CASE
    default: fail_bug("the fast oracle does not know '", ir::info(op).name, "'");
  }
}

void unary_float(Op op, const Lanes& x, std::size_t count, double* out) {
  with_constant(op, [&](auto constant) {
    map<double>(x, count, out, [](double a) { return ir::scalar::eval_float_unary(decltype(constant)::value, a); });
  });
}

void binary_float(Op op, const Lanes& x, const Lanes& y, std::size_t count, double* out) {
  with_constant(op, [&](auto constant) {
    map<double>(x, y, count, out,
                [](double a, double b) { return ir::scalar::eval_float_binary(decltype(constant)::value, a, b); });
  });
}

void on_integers(Op op, const Lanes& x, const Lanes& y, std::size_t count, std::int32_t* out) {
  with_constant(op, [&](auto constant) {
    map<std::int32_t>(x, y, count, out, [](std::int32_t a, std::int32_t b) {
      return ir::scalar::eval_int(decltype(constant)::value, a, b);
    });
  });
}

template <class T>
void comparison(Op op, const Lanes& x, const Lanes& y, std::size_t count, std::uint8_t* out) {
  with_constant(op, [&](auto constant) {
    map<T>(x, y, count, out, [](T a, T b) { return ir::scalar::compare(decltype(constant)::value, a, b); });
  });
}

void on_bools(Op op, const Lanes& x, const Lanes& y, std::size_t count, std::uint8_t* out) {
  with_constant(op, [&](auto constant) {
    map<std::uint8_t>(x, y, count, out, [](std::uint8_t a, std::uint8_t b) {
      return ir::scalar::eval_bool(decltype(constant)::value, a != 0, b != 0);
    });
  });
}

void to_f32(Type from, const Lanes& x, std::size_t count, double* out) {
  switch (from) {
    case Type::kF32: return map<double>(x, count, out, [](double a) { return a; });
    // An i32 rounds to f32, whatever holds it.
    case Type::kI32: return map<std::int32_t>(x, count, out, [](std::int32_t a) { return static_cast<float>(a); });
    case Type::kBool: return map<std::uint8_t>(x, count, out, [](std::uint8_t a) { return a; });
  }
}

void to_i32(Type from, const Lanes& x, std::size_t count, std::int32_t* out) {
  switch (from) {
    case Type::kF32: return map<double>(x, count, out, [](double a) { return ir::scalar::to_i32(a); });
    case Type::kI32: return map<std::int32_t>(x, count, out, [](std::int32_t a) { return a; });
    case Type::kBool: return map<std::uint8_t>(x, count, out, [](std::uint8_t a) { return a; });
  }
}

void to_bool(Type from, const Lanes& x, std::size_t count, std::uint8_t* out) {
  switch (from) {
    case Type::kF32: return map<double>(x, count, out, [](double a) { return a != 0; });
    case Type::kI32: return map<std::int32_t>(x, count, out, [](std::int32_t a) { return a != 0; });
    case Type::kBool: return map<std::uint8_t>(x, count, out, [](std::uint8_t a) { return a; });
  }
}

}  // namespace

StripEvaluator::StripEvaluator(const Program& program, const std::vector<OperandView>& operands,
                               const IndexOffsets& offsets, std::int64_t keys)
    : program_(program), operands_(operands), offsets_(offsets), all_keys_(static_cast<std::size_t>(keys)) {
  if (program.operands().size() != operands.size()) fail_bug("a program's operands are not those of its problem");
  for (const Node& node : program.nodes()) {
    Values values;
    values.level = level_of(node);
    const std::size_t lanes = values.level == Level::kKey ? all_keys_ : values.level == Level::kScore ? kMaxKeys : 1;
    if (node.type == Type::kF32) values.f.resize(lanes);
    if (node.type == Type::kI32) values.i.resize(lanes);
    if (node.type == Type::kBool) values.b.resize(lanes);
    values_.push_back(std::move(values));
  }
}

StripEvaluator::Level StripEvaluator::level_of(const Node& node) const {
  bool by_query = node.op == Op::kQueryIdx, by_key = node.op == Op::kKeyIdx;
  if (node.op == Op::kScore || node.op == Op::kUpstream) return Level::kScore;
  if (node.op == Op::kOperand) {
    by_query = operands_[node.payload].decl.axes[static_cast<std::size_t>(Axis::kQuery)];
    by_key = operands_[node.payload].decl.axes[static_cast<std::size_t>(Axis::kKey)];
  }
  for (const NodeId arg : ir::args_of(node)) {
    const Level level = values_[arg].level;
    by_query |= level == Level::kQuery || level == Level::kScore;
    by_key |= level == Level::kKey || level == Level::kScore;
  }
  if (by_query && by_key) return Level::kScore;
  return by_query ? Level::kQuery : by_key ? Level::kKey : Level::kHead;
}

void StripEvaluator::begin_head(std::int64_t batch, std::int64_t head) {
  element_ = {batch, head, 0, 0};
  run(Level::kHead, 0, 1);
  run(Level::kKey, 0, all_keys_);
}

void StripEvaluator::begin_query(std::int64_t query) {
  element_.query = query;
  run(Level::kQuery, 0, 1);
}

void StripEvaluator::evaluate(std::int64_t first, std::size_t count, const double* scores, const double* upstream) {
  scores_ = scores;
  upstream_ = upstream;
  run(Level::kScore, first, count);
}

void StripEvaluator::run(Level level, std::int64_t first, std::size_t count) {
  element_.key = first;
  count_ = count;
  for (NodeId id = 0; id < values_.size(); ++id) {
    if (values_[id].level == level) compute(id);
  }
}

Lanes StripEvaluator::at(NodeId node) const {
  const Values& values = values_[node];
  if (program_.nodes()[node].op == Op::kScore) return {scores_, nullptr, nullptr, 1};
  if (program_.nodes()[node].op == Op::kUpstream) return {upstream_, nullptr, nullptr, 1};
  const bool shared = values.level == Level::kHead || values.level == Level::kQuery;
  const std::int64_t first = values.level == Level::kKey ? element_.key : 0;
  const auto from_first = [&](const auto& lanes) { return lanes.empty() ? nullptr : lanes.data() + first; };
  return {from_first(values.f), from_first(values.i), from_first(values.b), shared ? 0u : 1u};
}

void StripEvaluator::compute(NodeId id) {
  const Node& node = program_.nodes()[id];
  Values& out = values_[id];
  std::array<Lanes, kMaxArgs> args;
  for (std::size_t i = 0; i < std::min<std::size_t>(node.arg_count, kMaxArgs); ++i) args[i] = at(node.args[i]);
  const Lanes &x = args[0], &y = args[1];
  const Type arg_type = node.arg_count > 0 ? program_.nodes()[node.args[0]].type : node.type;
  const bool floats = node.type == Type::kF32;
  switch (ir::info(node.op).signature) {
    case ir::Signature::kLeaf: return compute_leaf(node, out);
    case ir::Signature::kFloatUnary: return unary_float(node.op, x, count_, out.f.data());
    case ir::Signature::kFloatBinary: return binary_float(node.op, x, y, count_, out.f.data());
    case ir::Signature::kIntBinary: return on_integers(node.op, x, y, count_, out.i.data());
    case ir::Signature::kNumberUnary:
      if (floats) return unary_float(node.op, x, count_, out.f.data());
      return on_integers(node.op, x, x, count_, out.i.data());
    case ir::Signature::kNumberBinary:
      if (floats) return binary_float(node.op, x, y, count_, out.f.data());
      return on_integers(node.op, x, y, count_, out.i.data());
    case ir::Signature::kEquality:
    case ir::Signature::kOrdering:
      if (arg_type == Type::kF32) return comparison<double>(node.op, x, y, count_, out.b.data());
      if (arg_type == Type::kI32) return comparison<std::int32_t>(node.op, x, y, count_, out.b.data());
      return comparison<std::uint8_t>(node.op, x, y, count_, out.b.data());
    case ir::Signature::kBoolBinary: return on_bools(node.op, x, y, count_, out.b.data());
    case ir::Signature::kBoolUnary: return on_bools(node.op, x, x, count_, out.b.data());
    case ir::Signature::kSelect:
      if (floats) return select(x, y, args[2], count_, out.f.data());
      if (node.type == Type::kI32) return select(x, y, args[2], count_, out.i.data());
      return select(x, y, args[2], count_, out.b.data());
    case ir::Signature::kCast:
      if (floats) return to_f32(arg_type, x, count_, out.f.data());
      if (node.type == Type::kI32) return to_i32(arg_type, x, count_, out.i.data());
      return to_bool(arg_type, x, count_, out.b.data());
  }
}

void StripEvaluator::compute_leaf(const Node& node, Values& out) {
  const auto index = [](std::int64_t local, std::int32_t offset) { return static_cast<std::int32_t>(local + offset); };
  switch (node.op) {
    case Op::kScore:
    case Op::kUpstream: return;  // read where the caller has them
    case Op::kBatchIdx: out.i[0] = index(element_.batch, offsets_.batch); return;
    case Op::kHeadIdx: out.i[0] = index(element_.head, offsets_.head); return;
    case Op::kQueryIdx: out.i[0] = index(element_.query, offsets_.query); return;
    case Op::kKeyIdx:
      for (std::size_t i = 0; i < count_; ++i)
        out.i[i] = index(element_.key + static_cast<std::int64_t>(i), offsets_.key);
      return;
    case Op::kConstant: {
      const ir::Scalar<double> value = ir::constant_value<double>(node);
      if (node.type == Type::kF32) out.f[0] = value.f;
      if (node.type == Type::kI32) out.i[0] = value.i;
      if (node.type == Type::kBool) out.b[0] = value.b ? 1 : 0;
      return;
    }
    default: return read_operand(node, out);
  }
}

template <class Body>
void StripEvaluator::for_each_place(const OperandView& operand, std::span<const NodeId> indices,
                                    const std::array<std::int64_t, kMaxTableRank>& strides, const Body& body) const {
  if (!operand.decl.is_table()) {
    const std::array<std::int64_t, kAxisCount> local{element_.batch, element_.head, element_.query, element_.key};
    std::int64_t place = 0, step = 0;
    std::size_t rank = 0;
    for (std::size_t axis = 0; axis < local.size(); ++axis) {
      if (!operand.decl.axes[axis]) continue;
      if (axis == static_cast<std::size_t>(Axis::kKey)) step = strides[rank];
      place += strides[rank++] * local[axis];
    }
    for (std::size_t lane = 0; lane < count_; ++lane, place += step) body(lane, place);
    return;
  }
  std::array<Lanes, kMaxTableRank> at_dim;
  for (std::size_t d = 0; d < indices.size(); ++d) at_dim[d] = at(indices[d]);
  for (std::size_t lane = 0; lane < count_; ++lane) {
    std::int64_t place = 0;
    for (std::size_t d = 0; d < indices.size(); ++d) {
      const std::int64_t index = at_dim[d].i[lane * at_dim[d].step];
      place += strides[d] * std::clamp<std::int64_t>(index, 0, operand.shape[d] - 1);
    }
    body(lane, place);
  }
}

void StripEvaluator::read_operand(const Node& node, Values& out) {
  const OperandView& operand = operands_[node.payload];
  for_each_place(operand, ir::args_of(node), operand.strides, [&](std::size_t lane, std::int64_t offset) {
    switch (operand.decl.type) {
      case Type::kF32: out.f[lane] = load_element<double>(operand.data, operand.dtype, offset); break;
      case Type::kI32: out.i[lane] = load_element<std::int32_t>(operand.data, operand.dtype, offset); break;
      case Type::kBool: out.b[lane] = load_element<bool>(operand.data, operand.dtype, offset) ? 1 : 0; break;
    }
  });
}

void StripEvaluator::write_kept(std::uint8_t* kept) const {
  const Lanes value = at(program_.value());
  const NodeId root = program_.keep();
  const Lanes keep = root == kNoNode ? Lanes{} : at(root);
  for (std::size_t i = 0; i < count_; ++i) {
    const bool allowed = keep.b == nullptr || keep.b[i * keep.step] != 0;
    kept[i] = allowed && value.f[i * value.step] != -std::numeric_limits<double>::infinity() ? 1 : 0;
  }
}

void StripEvaluator::add_contributions(const Root& root, const std::uint8_t* kept,
                                       std::vector<double>& gradient) const {
  const Lanes values = at(root.node);
  const OperandView& operand = operands_[root.operand];
  std::array<std::int64_t, kMaxTableRank> dense{};
  std::int64_t step = 1;
  for (std::size_t d = operand.shape.size(); d-- > 0; step *= operand.shape[d]) dense[d] = step;
  for_each_place(operand, ir::indices_of(program_, root), dense, [&](std::size_t lane, std::int64_t entry) {
    if (kept[lane] != 0) gradient[static_cast<std::size_t>(entry)] += values.f[lane * values.step];
  });
}

}  // namespace scoremod::backend::reference
