#include "ir/op_rounding.hpp"

namespace scoremod::ir {

Rounding rounding_of(Op op) {
  switch (op) {
    case Op::kMin:
    case Op::kMax:
    case Op::kNeg:
    case Op::kAbs:
    case Op::kSign:
    case Op::kFloor:
    case Op::kCeil:
    case Op::kRound:
    case Op::kRelu:
    case Op::kSelect:
    case Op::kSurrogate:
    case Op::kToF32: return Rounding::kNone;
    case Op::kAdd:
    case Op::kSub:
    case Op::kMul:
    case Op::kDiv:
    case Op::kMod:
    case Op::kSqrt: return Rounding::kNearest;
    default: return Rounding::kFunction;
  }
}

}  // namespace scoremod::ir
