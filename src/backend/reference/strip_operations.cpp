#include "backend/reference/strip_operations.hpp"

#include <type_traits>

#include "base/fail.hpp"
#include "ir/op_table.hpp"
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

void compute_lanes(const Node& node, Type arg_type, const std::array<Lanes, kMaxArgs>& args, std::size_t count,
                   const WritableLanes& out) {
  const Lanes &x = args[0], &y = args[1];
  const bool floats = node.type == Type::kF32;
  switch (ir::info(node.op).signature) {
    case ir::Signature::kFloatUnary: return unary_float(node.op, x, count, out.f);
    case ir::Signature::kFloatBinary: return binary_float(node.op, x, y, count, out.f);
    case ir::Signature::kIntBinary: return on_integers(node.op, x, y, count, out.i);
    case ir::Signature::kNumberUnary:
      if (floats) return unary_float(node.op, x, count, out.f);
      return on_integers(node.op, x, x, count, out.i);
    case ir::Signature::kNumberBinary:
      if (floats) return binary_float(node.op, x, y, count, out.f);
      return on_integers(node.op, x, y, count, out.i);
    case ir::Signature::kEquality:
    case ir::Signature::kOrdering:
      if (arg_type == Type::kF32) return comparison<double>(node.op, x, y, count, out.b);
      if (arg_type == Type::kI32) return comparison<std::int32_t>(node.op, x, y, count, out.b);
      return comparison<std::uint8_t>(node.op, x, y, count, out.b);
    case ir::Signature::kBoolBinary: return on_bools(node.op, x, y, count, out.b);
    case ir::Signature::kBoolUnary: return on_bools(node.op, x, x, count, out.b);
    case ir::Signature::kSelect:
      if (floats) return select(x, y, args[2], count, out.f);
      if (node.type == Type::kI32) return select(x, y, args[2], count, out.i);
      return select(x, y, args[2], count, out.b);
    case ir::Signature::kCast:
      if (floats) return to_f32(arg_type, x, count, out.f);
      if (node.type == Type::kI32) return to_i32(arg_type, x, count, out.i);
      return to_bool(arg_type, x, count, out.b);
    case ir::Signature::kLeaf: fail_bug("'", ir::info(node.op).name, "' has no arguments to compute from");
  }
}

}  // namespace scoremod::backend::reference
