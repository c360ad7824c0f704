#include "ir/op_table.hpp"

#include <array>

#include "base/fail.hpp"

namespace scoremod::ir {
namespace {

constexpr auto kKeyword = Notation::kKeyword;
constexpr auto kCall = Notation::kCall;
constexpr auto kInfix = Notation::kInfix;
constexpr auto kPrefix = Notation::kPrefix;
constexpr int kTop = kPrimaryPrecedence;

// f32 arithmetic is IEEE 754 single precision; i32 arithmetic is two's complement and wraps. A NaN argument gives NaN
// unless a row says otherwise.
constexpr std::array<OpInfo, kOpCount> kOps{{
    {Op::kScore, "score", kKeyword, kTop, Signature::kLeaf, 0, false, "the score, already multiplied by scale", ""},
    {Op::kUpstream, "upstream", kKeyword, kTop, Signature::kLeaf, 0, false, "d loss / d value; derivatives only", ""},
    {Op::kScale, "qk_scale", kKeyword, kTop, Signature::kLeaf, 0, false,
     "what the products of q and k were multiplied by", "score / qk_scale is the product itself"},
    {Op::kBatchIdx, "b", kKeyword, kTop, Signature::kLeaf, 0, false, "global batch index", ""},
    {Op::kHeadIdx, "h", kKeyword, kTop, Signature::kLeaf, 0, false, "global query-head index", ""},
    {Op::kQueryIdx, "q_idx", kKeyword, kTop, Signature::kLeaf, 0, false, "global query position", ""},
    {Op::kKeyIdx, "kv_idx", kKeyword, kTop, Signature::kLeaf, 0, false, "global key position", ""},
    {Op::kConstant, "constant", kKeyword, kTop, Signature::kLeaf, 0, false, "a literal of type f32, i32 or bool",
     "nan is the quiet NaN"},
    {Op::kOperand, "operand", kKeyword, kTop, Signature::kLeaf, 0, false, "a broadcast operand at the current element",
     "f16 and bf16 tensors are read as f32"},
    {Op::kGather, "gather", kKeyword, kTop, Signature::kLeaf, 0, false, "a table at computed indices: table[i, j]",
     "each index is clamped to [0, extent - 1]"},
    {Op::kAdd, "+", kInfix, kSumPrecedence, Signature::kNumberBinary, 2, true, "x + y", ""},
    {Op::kSub, "-", kInfix, kSumPrecedence, Signature::kNumberBinary, 2, false, "x - y", ""},
    {Op::kMul, "*", kInfix, kProductPrecedence, Signature::kNumberBinary, 2, true, "x * y", "0 * inf is NaN"},
    {Op::kDiv, "/", kInfix, kProductPrecedence, Signature::kFloatBinary, 2, false, "x / y",
     "x / 0 is inf with the sign of x and of the zero; 0 / 0 is NaN"},
    {Op::kFloorDiv, "//", kInfix, kProductPrecedence, Signature::kIntBinary, 2, false,
     "the largest integer not above x / y", "x // 0 is 0; -2147483648 // -1 wraps to -2147483648"},
    {Op::kMod, "%", kInfix, kProductPrecedence, Signature::kNumberBinary, 2, false,
     "x - floor(x / y) * y: the sign of y",
     "i32: x % 0 is x; f32: x % 0 and inf % y are NaN, x % inf is x when the signs agree, else y; rounding may give y"},
    {Op::kPow, "pow", kCall, kTop, Signature::kFloatBinary, 2, false, "x to the power y",
     "as C's pow: pow(x, 0) is 1 even for NaN; x < 0 with y no integer is NaN"},
    {Op::kAtan2, "atan2", kCall, kTop, Signature::kFloatBinary, 2, false,
     "atan2(y, x): the angle of the point (x, y), in radians",
     "as C's atan2; atan2(0, 0) is 0, and its derivative NaN"},
    {Op::kMin, "min", kCall, kTop, Signature::kNumberBinary, 2, true, "the smaller", "NaN if either is NaN"},
    {Op::kMax, "max", kCall, kTop, Signature::kNumberBinary, 2, true, "the larger", "NaN if either is NaN"},
    {Op::kNeg, "-", kPrefix, kPrefixPrecedence, Signature::kNumberUnary, 1, false, "-x", ""},
    {Op::kAbs, "abs", kCall, kTop, Signature::kNumberUnary, 1, false, "the magnitude", "abs(-2147483648) wraps"},
    {Op::kSign, "sign", kCall, kTop, Signature::kNumberUnary, 1, false, "-1, 0 or 1", "sign(-0.0) is -0.0"},
    {Op::kFloor, "floor", kCall, kTop, Signature::kFloatUnary, 1, false, "the largest integer not above x", ""},
    {Op::kCeil, "ceil", kCall, kTop, Signature::kFloatUnary, 1, false, "the smallest integer not below x", ""},
    {Op::kRound, "round", kCall, kTop, Signature::kFloatUnary, 1, false, "the nearest integer, halves to even", ""},
    {Op::kExp, "exp", kCall, kTop, Signature::kFloatUnary, 1, false, "e to the power x", "exp(-inf) is 0"},
    {Op::kExp2, "exp2", kCall, kTop, Signature::kFloatUnary, 1, false, "2 to the power x", "exp2(-inf) is 0"},
    {Op::kExpm1, "expm1", kCall, kTop, Signature::kFloatUnary, 1, false, "exp(x) - 1, accurate near 0",
     "expm1(-inf) is -1"},
    {Op::kLog, "log", kCall, kTop, Signature::kFloatUnary, 1, false, "natural logarithm",
     "log(0) is -inf; x < 0 is NaN"},
    {Op::kLog1p, "log1p", kCall, kTop, Signature::kFloatUnary, 1, false, "log(1 + x), accurate near 0",
     "log1p(-1) is -inf; x < -1 is NaN"},
    {Op::kSqrt, "sqrt", kCall, kTop, Signature::kFloatUnary, 1, false, "square root",
     "x < 0 is NaN; sqrt(-0.0) is -0.0"},
    {Op::kRsqrt, "rsqrt", kCall, kTop, Signature::kFloatUnary, 1, false, "1 / sqrt(x)",
     "rsqrt(0) is inf; x < 0 is NaN"},
    {Op::kReciprocal, "reciprocal", kCall, kTop, Signature::kFloatUnary, 1, false, "1 / x", "as 1 / x"},
    {Op::kSin, "sin", kCall, kTop, Signature::kFloatUnary, 1, false, "sine of x radians", "sin(inf) is NaN"},
    {Op::kCos, "cos", kCall, kTop, Signature::kFloatUnary, 1, false, "cosine of x radians", "cos(inf) is NaN"},
    {Op::kTan, "tan", kCall, kTop, Signature::kFloatUnary, 1, false, "tangent of x radians", "tan(inf) is NaN"},
    {Op::kAtan, "atan", kCall, kTop, Signature::kFloatUnary, 1, false, "arc tangent, in radians",
     "atan(inf) is pi / 2"},
    {Op::kTanh, "tanh", kCall, kTop, Signature::kFloatUnary, 1, false, "hyperbolic tangent", "tanh(inf) is 1"},
    {Op::kSigmoid, "sigmoid", kCall, kTop, Signature::kFloatUnary, 1, false, "1 / (1 + exp(-x))", "sigmoid(-inf) is 0"},
    {Op::kErf, "erf", kCall, kTop, Signature::kFloatUnary, 1, false, "error function", "erf(inf) is 1"},
    {Op::kErfc, "erfc", kCall, kTop, Signature::kFloatUnary, 1, false, "1 - erf(x), accurate far above 0",
     "erfc(inf) is 0; erfc(-inf) is 2"},
    {Op::kSoftplus, "softplus", kCall, kTop, Signature::kFloatUnary, 1, false, "log(1 + exp(x)), without overflow",
     "softplus(-inf) is 0; softplus(inf) is inf"},
    {Op::kRelu, "relu", kCall, kTop, Signature::kFloatUnary, 1, false, "max(x, 0)", "NaN stays NaN"},
    {Op::kGelu, "gelu", kCall, kTop, Signature::kFloatUnary, 1, false, "x * (1 + erf(x / sqrt(2))) / 2",
     "the limits: gelu(-inf) is 0, gelu(inf) is inf"},
    {Op::kGeluTanh, "gelu_tanh", kCall, kTop, Signature::kFloatUnary, 1, false,
     "x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2",
     "the limits: gelu_tanh(-inf) is 0, gelu_tanh(inf) is inf"},
    {Op::kSilu, "silu", kCall, kTop, Signature::kFloatUnary, 1, false, "x * sigmoid(x)",
     "the limits: silu(-inf) is 0, silu(inf) is inf"},
    {Op::kEq, "==", kInfix, kComparePrecedence, Signature::kEquality, 2, true, "x equals y", "false if either is NaN"},
    {Op::kNe, "!=", kInfix, kComparePrecedence, Signature::kEquality, 2, true, "x differs from y",
     "true if either is NaN"},
    {Op::kLt, "<", kInfix, kComparePrecedence, Signature::kOrdering, 2, false, "x below y", "false if either is NaN"},
    {Op::kLe, "<=", kInfix, kComparePrecedence, Signature::kOrdering, 2, false, "x not above y",
     "false if either is NaN"},
    {Op::kGt, ">", kInfix, kComparePrecedence, Signature::kOrdering, 2, false, "x above y", "false if either is NaN"},
    {Op::kGe, ">=", kInfix, kComparePrecedence, Signature::kOrdering, 2, false, "x not below y",
     "false if either is NaN"},
    {Op::kAnd, "&", kInfix, kAndPrecedence, Signature::kBoolBinary, 2, true, "both", ""},
    {Op::kOr, "|", kInfix, kOrPrecedence, Signature::kBoolBinary, 2, true, "either", ""},
    {Op::kXor, "^", kInfix, kXorPrecedence, Signature::kBoolBinary, 2, true, "exactly one", ""},
    {Op::kNot, "!", kPrefix, kPrefixPrecedence, Signature::kBoolUnary, 1, false, "not x", ""},
    {Op::kSelect, "select", kCall, kTop, Signature::kSelect, 3, false, "c ? x : y",
     "the value that is not chosen has no influence, be it NaN or inf"},
    {Op::kSurrogate, "surrogate", kCall, kTop, Signature::kFloatBinary, 2, false,
     "x, and in derivatives y: surrogate(round(s), s) has a straight-through gradient",
     "only the gradient of y reaches what x and y are made of"},
    {Op::kToF32, "f32", kCall, kTop, Signature::kCast, 1, false, "as f32; bool gives 0 or 1",
     "i32 beyond 2^24 rounds to nearest even"},
    {Op::kToI32, "i32", kCall, kTop, Signature::kCast, 1, false, "as i32, towards zero; bool gives 0 or 1",
     "saturates; NaN gives 0"},
    {Op::kToBool, "bool", kCall, kTop, Signature::kCast, 1, false, "x != 0", "NaN gives true"},
}};

constexpr bool in_enum_order() {
  for (int i = 0; i < kOpCount; ++i) {
    if (static_cast<int>(kOps[static_cast<std::size_t>(i)].op) != i) return false;
  }
  return true;
}
static_assert(in_enum_order(), "kOps must list the ops in the order of enum Op");

constexpr std::array<const char*, kAxisCount> kAxisNames{"b", "h", "q_idx", "kv_idx"};

bool is_number(Type type) { return type != Type::kBool; }

/// The arguments that a signature expects, for messages.
const char* expectation(Signature signature) {
  switch (signature) {
    case Signature::kLeaf: return "no arguments";
    case Signature::kFloatUnary: return "one f32";
    case Signature::kNumberUnary: return "one f32 or i32";
    case Signature::kFloatBinary: return "two f32";
    case Signature::kNumberBinary: return "two f32 or two i32";
    case Signature::kIntBinary: return "two i32";
    case Signature::kEquality: return "two arguments of the same type";
    case Signature::kOrdering: return "two f32 or two i32";
    case Signature::kBoolBinary: return "two bool";
    case Signature::kBoolUnary: return "one bool";
    case Signature::kSelect: return "a bool and two arguments of the same type";
    case Signature::kCast: return "one argument";
  }
  return "";
}

bool fits(Signature signature, std::span<const Type> a) {
  switch (signature) {
    case Signature::kLeaf: return false;
    case Signature::kFloatUnary: return a[0] == Type::kF32;
    case Signature::kNumberUnary: return is_number(a[0]);
    case Signature::kFloatBinary: return a[0] == Type::kF32 && a[1] == Type::kF32;
    case Signature::kNumberBinary:
    case Signature::kOrdering: return is_number(a[0]) && a[0] == a[1];
    case Signature::kIntBinary: return a[0] == Type::kI32 && a[1] == Type::kI32;
    case Signature::kEquality: return a[0] == a[1];
    case Signature::kBoolBinary: return a[0] == Type::kBool && a[1] == Type::kBool;
    case Signature::kBoolUnary: return a[0] == Type::kBool;
    case Signature::kSelect: return a[0] == Type::kBool && a[1] == a[2];
    case Signature::kCast: return true;
  }
  return false;
}

Type result_type(Op op, Signature signature, std::span<const Type> args) {
  switch (signature) {
    case Signature::kEquality:
    case Signature::kOrdering:
    case Signature::kBoolBinary:
    case Signature::kBoolUnary: return Type::kBool;
    case Signature::kSelect: return args[1];
    case Signature::kCast: return op == Op::kToF32 ? Type::kF32 : op == Op::kToI32 ? Type::kI32 : Type::kBool;
    default: return args[0];
  }
}

}  // namespace

std::span<const OpInfo> op_table() { return kOps; }

const OpInfo& info(Op op) {
  const auto index = static_cast<std::size_t>(op);
  if (index >= kOps.size()) fail_bug("op number ", index, " is not in the op table");
  return kOps[index];
}

std::optional<Op> find_op(std::string_view name) {
  for (const OpInfo& row : kOps) {
    if (row.notation == Notation::kCall && name == row.name) return row.op;
  }
  return std::nullopt;
}

std::optional<Op> find_infix(std::string_view symbol) {
  for (const OpInfo& row : kOps) {
    if (row.notation == Notation::kInfix && symbol == row.name) return row.op;
  }
  return std::nullopt;
}

std::optional<Type> infer_type(Op op, std::span<const Type> args, std::string* why) {
  const OpInfo& row = info(op);
  const bool right_count = args.size() == static_cast<std::size_t>(row.arity);
  if (right_count && fits(row.signature, args)) return result_type(op, row.signature, args);
  std::string found;
  for (const Type type : args) found += concat(found.empty() ? "" : ", ", to_string(type));
  *why = concat("'", row.name, "' takes ", expectation(row.signature), ", found (", found, ")");
  if (op == Op::kDiv && right_count && args[0] == Type::kI32 && args[1] == Type::kI32) {
    *why += "; integers divide with '//', or convert with f32()";
  } else if (right_count) {
    *why += "; convert with f32(), i32() or bool()";
  }
  return std::nullopt;
}

const char* axis_name(Axis axis) { return kAxisNames[static_cast<std::size_t>(axis)]; }

std::optional<Axis> find_axis(std::string_view name) {
  for (int i = 0; i < kAxisCount; ++i) {
    if (name == kAxisNames[static_cast<std::size_t>(i)]) return static_cast<Axis>(i);
  }
  return std::nullopt;
}

}  // namespace scoremod::ir
