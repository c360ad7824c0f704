#include "backend/cudnn/lowering/lower_op.hpp"

#include <numbers>

#include "base/fail.hpp"
#include "ir/op_table.hpp"

namespace scoremod::backend::cudnn {
namespace {

/// (x > 0) - (x < 0): cuDNN has no sign.
Value sign(GraphWriter& writer, Value x) {
  const Value zero = x.type == Type::kF32 ? GraphWriter::constant(0.0f) : GraphWriter::constant(std::int32_t{0});
  const Value above = writer.cast(writer.compare(Mode::kCmpGt, x, zero), x.type);
  const Value below = writer.cast(writer.compare(Mode::kCmpLt, x, zero), x.type);
  return writer.binary(Mode::kSub, above, below);
}

/// Halves to even, by the sum with a number so large that its unit in the last place is 1. Numbers of magnitude 2^22
/// and more, for which that does not hold, stay as they are: half a unit off at most.
Value round(GraphWriter& writer, Value x) {
  const Value magic = GraphWriter::constant(0x1.8p23f);
  const Value rounded = writer.binary(Mode::kSub, writer.binary(Mode::kAdd, x, magic), magic);
  const Value small = writer.compare(Mode::kCmpLt, writer.unary(Mode::kAbs, x), GraphWriter::constant(0x1p22f));
  writer.use("round.f32");
  return writer.select(small, rounded, x);
}

/// x - floor(x / y) * y.
Value floor_mod(GraphWriter& writer, Value x, Value y) {
  const Value quotient = writer.unary(Mode::kFloor, writer.binary(Mode::kDiv, x, y));
  return writer.binary(Mode::kSub, x, writer.binary(Mode::kMul, quotient, y));
}

}  // namespace

Value lower_unary(GraphWriter& writer, Op op, Value x) {
  const auto one = GraphWriter::constant(1.0f);
  switch (op) {
    case Op::kNeg: return writer.unary(Mode::kNeg, x);
    case Op::kAbs: return writer.unary(Mode::kAbs, x);
    case Op::kFloor: return writer.unary(Mode::kFloor, x);
    case Op::kCeil: return writer.unary(Mode::kCeil, x);
    case Op::kExp: return writer.unary(Mode::kExp, x);
    case Op::kLog: return writer.unary(Mode::kLog, x);
    case Op::kSqrt: return writer.unary(Mode::kSqrt, x);
    case Op::kRsqrt: return writer.unary(Mode::kRsqrt, x);
    case Op::kReciprocal: return writer.unary(Mode::kReciprocal, x);
    case Op::kSin: return writer.unary(Mode::kSin, x);
    case Op::kCos: return writer.unary(Mode::kCos, x);
    case Op::kTan: return writer.unary(Mode::kTan, x);
    case Op::kTanh: return writer.unary(Mode::kTanh, x);
    case Op::kSigmoid: return writer.unary(Mode::kSigmoid, x);
    case Op::kErf: return writer.unary(Mode::kErf, x);
    case Op::kSoftplus: return writer.unary(Mode::kSoftplus, x);
    case Op::kRelu: return writer.unary(Mode::kRelu, x);
    case Op::kGelu: return writer.unary(Mode::kGelu, x);
    case Op::kGeluTanh: return writer.unary(Mode::kGeluTanh, x);
    case Op::kSilu: return writer.unary(Mode::kSwish, x);
    // Composed, because cuDNN has no such mode.
    case Op::kExp2:
      return writer.unary(Mode::kExp, writer.binary(Mode::kMul, x, GraphWriter::constant(std::numbers::ln2_v<float>)));
    case Op::kSign: return sign(writer, x);
    case Op::kRound: return round(writer, x);
    case Op::kExpm1: return writer.binary(Mode::kSub, writer.unary(Mode::kExp, x), one);
    case Op::kLog1p: return writer.unary(Mode::kLog, writer.binary(Mode::kAdd, x, one));
    case Op::kAtan:
    case Op::kErfc: throw NoPattern{concat("'", ir::info(op).name, "' of the score: cuDNN has no such function")};
    default: fail_bug("'", ir::info(op).name, "' has no lowering");
  }
}

Value lower_binary(GraphWriter& writer, Op op, Value x, Value y) {
  switch (op) {
    case Op::kAdd: return writer.binary(Mode::kAdd, x, y);
    case Op::kSub: return writer.binary(Mode::kSub, x, y);
    case Op::kMul: return writer.binary(Mode::kMul, x, y);
    case Op::kDiv: return writer.binary(Mode::kDiv, x, y);
    case Op::kPow: return writer.binary(Mode::kPow, x, y);
    case Op::kMin: return writer.binary(Mode::kMin, x, y);
    case Op::kMax: return writer.binary(Mode::kMax, x, y);
    case Op::kAtan2: throw NoPattern{"'atan2' of the score: cuDNN has no such function"};
    case Op::kSurrogate: return x;
    case Op::kMod:
      if (x.type == Type::kF32) return floor_mod(writer, x, y);
      break;
    default: break;
  }
  throw NoPattern{concat("'", ir::info(op).name,
                         "' of integers that depend on the score: cuDNN's division and modulo truncate, "
                         "and cost up to 18 times")};
}

Value lower_comparison(GraphWriter& writer, Op op, Value x, Value y, bool may_wrap) {
  // Bools compare as the logic that they are: equality is not-xor.
  if (x.type == Type::kBool) {
    const Value differs = writer.logical(Mode::kCmpNeq, x, y);
    return op == Op::kNe ? differs : writer.logical_not(differs);
  }
  switch (op) {
    case Op::kEq: return writer.compare(Mode::kCmpEq, x, y);
    case Op::kNe: return writer.compare(Mode::kCmpNeq, x, y);
    case Op::kLt: return writer.compare(Mode::kCmpLt, x, y, may_wrap);
    case Op::kLe: return writer.compare(Mode::kCmpLe, x, y, may_wrap);
    case Op::kGt: return writer.compare(Mode::kCmpGt, x, y, may_wrap);
    case Op::kGe: return writer.compare(Mode::kCmpGe, x, y, may_wrap);
    default: fail_bug("'", ir::info(op).name, "' is no comparison");
  }
}

Value lower_boolean(GraphWriter& writer, Op op, Value x, Value y) {
  const Mode mode = op == Op::kAnd ? Mode::kLogicalAnd : op == Op::kOr ? Mode::kLogicalOr : Mode::kCmpNeq;
  return writer.logical(mode, x, y);
}

Value lower_select(GraphWriter& writer, Value condition, Value x, Value y) {
  if (x.type != Type::kBool) return writer.select(condition, x, y);
  // Named, so that the nodes have one order whatever the compiler.
  const Value first = writer.logical(Mode::kLogicalAnd, condition, x);
  const Value second = writer.logical(Mode::kLogicalAnd, writer.logical_not(condition), y);
  return writer.logical(Mode::kLogicalOr, first, second);
}

}  // namespace scoremod::backend::cudnn
