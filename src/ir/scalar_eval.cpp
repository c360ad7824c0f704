#include "ir/scalar_eval.hpp"

#include "base/fail.hpp"
#include "ir/builder.hpp"
#include "ir/scalar_functions.hpp"

namespace scoremod::ir {
namespace {

using namespace scalar;

template <class Real>
Scalar<Real> cast(Op op, Type from, const Scalar<Real>& x) {
  Scalar<Real> out;
  if (op == Op::kToF32) {
    // An i32 rounds to f32 whatever Real is: the program's value is an f32.
    out.f = from == Type::kF32   ? x.f
            : from == Type::kI32 ? static_cast<Real>(static_cast<float>(x.i))
                                 : Real(x.b ? 1 : 0);
  } else if (op == Op::kToI32) {
    out.i = from == Type::kF32 ? to_i32(x.f) : from == Type::kI32 ? x.i : (x.b ? 1 : 0);
  } else {
    out.b = from == Type::kF32 ? x.f != 0 : from == Type::kI32 ? x.i != 0 : x.b;
  }
  return out;
}

template <class Real>
bool eval_compare(Op op, Type type, const Scalar<Real>& x, const Scalar<Real>& y) {
  if (type == Type::kF32) return compare(op, x.f, y.f);
  return type == Type::kI32 ? compare(op, x.i, y.i) : compare(op, x.b, y.b);
}

}  // namespace

template <class Real>
Scalar<Real> eval_op(const Node& node, Type arg_type, std::span<const Scalar<Real>> args) {
  Scalar<Real> out;
  switch (info(node.op).signature) {
    case Signature::kLeaf: fail_bug("'", info(node.op).name, "' is a leaf and has no scalar meaning of its own");
    case Signature::kFloatUnary: out.f = eval_float_unary(node.op, args[0].f); break;
    case Signature::kFloatBinary: out.f = eval_float_binary(node.op, args[0].f, args[1].f); break;
    case Signature::kIntBinary: out.i = eval_int(node.op, args[0].i, args[1].i); break;
    case Signature::kNumberUnary:
      if (node.type == Type::kF32)
        out.f = eval_float_unary(node.op, args[0].f);
      else
        out.i = eval_int(node.op, args[0].i, 0);
      break;
    case Signature::kNumberBinary:
      if (node.type == Type::kF32)
        out.f = eval_float_binary(node.op, args[0].f, args[1].f);
      else
        out.i = eval_int(node.op, args[0].i, args[1].i);
      break;
    case Signature::kEquality:
    case Signature::kOrdering: out.b = eval_compare(node.op, arg_type, args[0], args[1]); break;
    case Signature::kBoolBinary: out.b = eval_bool(node.op, args[0].b, args[1].b); break;
    case Signature::kBoolUnary: out.b = eval_bool(node.op, args[0].b, false); break;
    case Signature::kSelect: return args[0].b ? args[1] : args[2];
    case Signature::kCast: return cast(node.op, arg_type, args[0]);
  }
  return out;
}

template <class Real>
Scalar<Real> constant_value(const Node& node) {
  Scalar<Real> out;
  switch (node.type) {
    case Type::kF32: out.f = static_cast<Real>(constant_f32(node)); break;
    case Type::kI32: out.i = constant_i32(node); break;
    case Type::kBool: out.b = constant_bool(node); break;
  }
  return out;
}

template Scalar<float> eval_op(const Node&, Type, std::span<const Scalar<float>>);
template Scalar<double> eval_op(const Node&, Type, std::span<const Scalar<double>>);
template Scalar<float> constant_value(const Node&);
template Scalar<double> constant_value(const Node&);

}  // namespace scoremod::ir
