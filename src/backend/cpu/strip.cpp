#include "backend/cpu/strip.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/element.hpp"
#include "base/fail.hpp"
#include "ir/scalar_eval.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/strip.cpp"
#include <hwy/foreach_target.h>
// clang-format off: foreach_target.h comes first.
#include <hwy/highway.h>

#include "backend/cpu/vector_math-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace scoremod::backend::cpu::HWY_NAMESPACE {

HWY_INLINE FloatVec load_float(LaneSource source, std::size_t i) {
  const FloatTag d;
  return source.broadcast ? hn::Set(d, *source.data) : hn::LoadU(d, source.data + i);
}

HWY_INLINE IntVec load_int(LaneSource source, std::size_t i) { return hn::BitCast(IntTag(), load_float(source, i)); }

HWY_INLINE FloatMask load_mask(LaneSource source, std::size_t i) {
  return hn::RebindMask(FloatTag(), hn::Ne(load_int(source, i), hn::Zero(IntTag())));
}

HWY_INLINE void store(FloatVec value, float* out) { hn::StoreU(value, FloatTag(), out); }
HWY_INLINE void store(IntVec value, float* out) { store(hn::BitCast(FloatTag(), value), out); }
HWY_INLINE void store(FloatMask value, float* out) { store(hn::VecFromMask(FloatTag(), value), out); }
HWY_INLINE void store(hn::Mask<IntTag> value, float* out) { store(hn::VecFromMask(IntTag(), value), out); }

struct Operands {
  LaneSource x, y, z;
  float* out;
  std::size_t length;
};

template <class Function>
HWY_INLINE void map(const Operands& at, Function function) {
  const std::size_t lanes = hn::Lanes(FloatTag());
  for (std::size_t i = 0; i < at.length; i += lanes) store(function(i), at.out + i);
}

template <class Function>
HWY_INLINE void map_float(const Operands& at, Function function) {
  map(at, [&](std::size_t i) HWY_ATTR { return function(load_float(at.x, i)); });
}

template <class Function>
HWY_INLINE void map_float2(const Operands& at, Function function) {
  map(at, [&](std::size_t i) HWY_ATTR { return function(load_float(at.x, i), load_float(at.y, i)); });
}

template <class Function>
HWY_INLINE void map_int2(const Operands& at, Function function) {
  map(at, [&](std::size_t i) HWY_ATTR { return function(load_int(at.x, i), load_int(at.y, i)); });
}

#define SCOREMOD_FLOAT(expression) return map_float(at, [](FloatVec x) HWY_ATTR { return expression; })
#define SCOREMOD_FLOAT2(expression) return map_float2(at, [](FloatVec x, FloatVec y) HWY_ATTR { return expression; })
#define SCOREMOD_INT(expression) \
  return map_int2(at, [](IntVec x, [[maybe_unused]] IntVec y) HWY_ATTR { return expression; })

/// Lane by lane through the op table's own meaning: ops too rare or too awkward to have a vector form.
HWY_NOINLINE void run_lanes(const Instruction& instruction, const Operands& at) {
  Node node;
  node.op = instruction.op;
  node.type = instruction.type;
  node.arg_count = instruction.arg_count;
  const LaneSource sources[3] = {at.x, at.y, at.z};
  std::array<ir::Scalar<float>, 3> args;
  for (std::size_t lane = 0; lane < at.length; ++lane) {
    for (std::size_t i = 0; i < instruction.arg_count; ++i) {
      const float* data = sources[i].data + (sources[i].broadcast ? 0 : lane);
      std::memcpy(&args[i].f, data, 4);
      std::memcpy(&args[i].i, data, 4);
      args[i].b = args[i].i != 0;
    }
    const auto result = ir::eval_op<float>(node, instruction.arg_type, std::span(args.data(), instruction.arg_count));
    const std::int32_t flag = result.b ? -1 : 0;
    const void* from = instruction.type == Type::kF32   ? static_cast<const void*>(&result.f)
                       : instruction.type == Type::kI32 ? static_cast<const void*>(&result.i)
                                                        : &flag;
    std::memcpy(at.out + lane, from, 4);
  }
}

HWY_INLINE FloatVec sign_of(FloatVec x) {
  const FloatTag d;
  const FloatVec unit = hn::CopySign(hn::Set(d, 1.0f), x);
  const FloatMask ordered = hn::Or(hn::Lt(x, hn::Zero(d)), hn::Gt(x, hn::Zero(d)));
  return hn::IfThenElse(ordered, unit, x);
}

HWY_INLINE FloatVec relu_of(FloatVec x) {
  const FloatTag d;
  return hn::IfThenZeroElse(hn::Le(x, hn::Zero(d)), x);
}

HWY_INLINE void run_float(const Instruction& instruction, const Operands& at) {
  switch (instruction.op) {
    case Op::kAdd: SCOREMOD_FLOAT2(hn::Add(x, y));
    case Op::kSub: SCOREMOD_FLOAT2(hn::Sub(x, y));
    case Op::kMul: SCOREMOD_FLOAT2(hn::Mul(x, y));
    case Op::kDiv: SCOREMOD_FLOAT2(hn::Div(x, y));
    case Op::kSurrogate: SCOREMOD_FLOAT(x);
    case Op::kMin: SCOREMOD_FLOAT2(min_nan(x, y));
    case Op::kMax: SCOREMOD_FLOAT2(max_nan(x, y));
    case Op::kNeg: SCOREMOD_FLOAT(hn::Neg(x));
    case Op::kAbs: SCOREMOD_FLOAT(hn::Abs(x));
    case Op::kSign: SCOREMOD_FLOAT(sign_of(x));
    case Op::kFloor: SCOREMOD_FLOAT(hn::Floor(x));
    case Op::kCeil: SCOREMOD_FLOAT(hn::Ceil(x));
    case Op::kRound: SCOREMOD_FLOAT(hn::Round(x));
    case Op::kExp: SCOREMOD_FLOAT(exp_any(x));
    case Op::kExp2: SCOREMOD_FLOAT(exp2_any(x));
    case Op::kExpm1: SCOREMOD_FLOAT(expm1_any(x));
    case Op::kLog: SCOREMOD_FLOAT(log_any(x));
    case Op::kLog1p: SCOREMOD_FLOAT(log1p_any(x));
    case Op::kSqrt: SCOREMOD_FLOAT(hn::Sqrt(x));
    case Op::kRsqrt: SCOREMOD_FLOAT(hn::Div(hn::Set(FloatTag(), 1.0f), hn::Sqrt(x)));
    case Op::kReciprocal: SCOREMOD_FLOAT(hn::Div(hn::Set(FloatTag(), 1.0f), x));
    case Op::kSin: SCOREMOD_FLOAT(sin_any(x));
    case Op::kCos: SCOREMOD_FLOAT(cos_any(x));
    case Op::kTanh: SCOREMOD_FLOAT(tanh_any(x));
    case Op::kSigmoid: SCOREMOD_FLOAT(sigmoid_any(x));
    case Op::kSoftplus: SCOREMOD_FLOAT(softplus_any(x));
    case Op::kRelu: SCOREMOD_FLOAT(relu_of(x));
    case Op::kGeluTanh: SCOREMOD_FLOAT(gelu_tanh_any(x));
    case Op::kSilu: SCOREMOD_FLOAT(gated(x, sigmoid_any(x)));
    default: return run_lanes(instruction, at);
  }
}

HWY_INLINE void run_int(const Instruction& instruction, const Operands& at) {
  switch (instruction.op) {
    case Op::kAdd: SCOREMOD_INT(hn::Add(x, y));
    case Op::kSub: SCOREMOD_INT(hn::Sub(x, y));
    case Op::kMul: SCOREMOD_INT(hn::Mul(x, y));
    case Op::kFloorDiv: SCOREMOD_INT(floor_div_any(x, y));
    case Op::kMod: SCOREMOD_INT(mod_any(x, y));
    case Op::kMin: SCOREMOD_INT(hn::Min(x, y));
    case Op::kMax: SCOREMOD_INT(hn::Max(x, y));
    case Op::kNeg: return map(at, [&](std::size_t i) HWY_ATTR { return hn::Neg(load_int(at.x, i)); });
    case Op::kAbs: return map(at, [&](std::size_t i) HWY_ATTR { return hn::Abs(load_int(at.x, i)); });
    default: return run_lanes(instruction, at);
  }
}

HWY_INLINE void run_float_comparison(const Instruction& instruction, const Operands& at) {
  switch (instruction.op) {
    case Op::kEq: SCOREMOD_FLOAT2(hn::Eq(x, y));
    case Op::kNe: SCOREMOD_FLOAT2(hn::Not(hn::Eq(x, y)));
    case Op::kLt: SCOREMOD_FLOAT2(hn::Lt(x, y));
    case Op::kLe: SCOREMOD_FLOAT2(hn::Le(x, y));
    case Op::kGt: SCOREMOD_FLOAT2(hn::Gt(x, y));
    default: SCOREMOD_FLOAT2(hn::Ge(x, y));
  }
}

/// Bools are 0 or -1, so equality and the order of i32 serve them too, the order reversed.
HWY_INLINE void run_int_comparison(const Instruction& instruction, const Operands& at) {
  switch (instruction.op) {
    case Op::kEq: SCOREMOD_INT(hn::Eq(x, y));
    case Op::kNe: SCOREMOD_INT(hn::Not(hn::Eq(x, y)));
    case Op::kLt: SCOREMOD_INT(hn::Lt(x, y));
    case Op::kLe: SCOREMOD_INT(hn::Not(hn::Gt(x, y)));
    case Op::kGt: SCOREMOD_INT(hn::Gt(x, y));
    default: SCOREMOD_INT(hn::Not(hn::Lt(x, y)));
  }
}

HWY_INLINE void run_bool(const Instruction& instruction, const Operands& at) {
  switch (instruction.op) {
    case Op::kAnd: SCOREMOD_INT(hn::And(x, y));
    case Op::kOr: SCOREMOD_INT(hn::Or(x, y));
    case Op::kXor: SCOREMOD_INT(hn::Xor(x, y));
    default: return map(at, [&](std::size_t i) HWY_ATTR { return hn::Not(load_int(at.x, i)); });
  }
}

HWY_INLINE void run_select(const Operands& at) {
  map(at, [&](std::size_t i)
              HWY_ATTR { return hn::IfThenElse(load_mask(at.x, i), load_float(at.y, i), load_float(at.z, i)); });
}

HWY_INLINE IntVec to_int(FloatVec x) {
  const FloatTag d;
  const IntTag di;
  // The conversion instruction saturates neither upwards nor NaN.
  const FloatMask too_large = hn::Ge(x, hn::Set(d, 2147483648.0f));
  const FloatVec safe = hn::IfThenZeroElse(hn::Or(too_large, hn::IsNaN(x)), x);
  const IntVec low = hn::Set(di, std::numeric_limits<std::int32_t>::min());
  const FloatMask too_small = hn::Le(x, hn::Set(d, -2147483648.0f));
  const IntVec converted = hn::ConvertTo(di, hn::IfThenZeroElse(too_small, safe));
  const IntVec saturated = hn::IfThenElse(hn::RebindMask(di, too_small), low, converted);
  return hn::IfThenElse(hn::RebindMask(di, too_large), hn::Set(di, std::numeric_limits<std::int32_t>::max()),
                        saturated);
}

HWY_INLINE void run_cast(const Instruction& instruction, const Operands& at) {
  const IntTag di;
  const Type from = instruction.arg_type;
  const auto copy = [&] { map(at, [&](std::size_t i) HWY_ATTR { return load_float(at.x, i); }); };
  if (from == instruction.type) return copy();
  if (instruction.type == Type::kBool) {
    if (from == Type::kI32) SCOREMOD_INT(hn::Ne(x, hn::Zero(IntTag())));
    SCOREMOD_FLOAT(hn::Not(hn::Eq(x, hn::Zero(FloatTag()))));
  }
  if (instruction.type == Type::kI32) {
    if (from == Type::kF32) SCOREMOD_FLOAT(to_int(x));
    return map(at, [&](std::size_t i) HWY_ATTR { return hn::And(load_int(at.x, i), hn::Set(di, 1)); });
  }
  if (from == Type::kI32) SCOREMOD_INT(hn::ConvertTo(FloatTag(), x));
  map(at, [&](std::size_t i) HWY_ATTR { return hn::IfThenElseZero(load_mask(at.x, i), hn::Set(FloatTag(), 1.0f)); });
}

#undef SCOREMOD_FLOAT
#undef SCOREMOD_FLOAT2
#undef SCOREMOD_INT

/// first, first + 1, ...
HWY_INLINE void fill_iota(const Operands& at, std::int64_t first) {
  const IntTag di;
  const auto start = static_cast<std::int32_t>(first);
  map(at, [&](std::size_t i) HWY_ATTR {
    return hn::Add(hn::Iota(di, 0), hn::Set(di, static_cast<std::int32_t>(static_cast<std::uint32_t>(start) +
                                                                          static_cast<std::uint32_t>(i))));
  });
}

/// One element of an operand in its 4-byte lane form.
inline void load_lane(const OperandView& view, std::int64_t index, float* out) {
  if (is_floating(view.dtype)) {
    *out = load_element<float>(view.data, view.dtype, index);
    return;
  }
  std::int32_t value = load_element<std::int32_t>(view.data, view.dtype, index);
  if (view.dtype == DType::kBool) value = value != 0 ? -1 : 0;
  std::memcpy(out, &value, 4);
}

HWY_NOINLINE void read_operand(const Instruction& instruction, const Strip& strip, const Operands& at) {
  const OperandView& view = strip.operands[instruction.operand];
  const Position& p = strip.position;
  const auto& s = view.axis_strides;
  const std::int64_t first = p.batch * s[0] + p.head * s[1] + p.query * s[2] + p.key * s[3];
  const std::int64_t step = instruction.out.place == Place::kRow ? s[2] : s[3];
  if (step == 1 && size_of(view.dtype) == 4) {
    std::memcpy(at.out, static_cast<const float*>(view.data) + first, at.length * 4);
    return;
  }
  for (std::size_t i = 0; i < at.length; ++i) {
    load_lane(view, first + static_cast<std::int64_t>(i) * step, at.out + i);
  }
}

HWY_INLINE void gather_narrow(const Instruction& instruction, const Strip& strip, const OperandView& view,
                              const Operands& at) {
  const IntTag di;
  map(at, [&](std::size_t i) HWY_ATTR {
    IntVec offset = hn::Zero(di);
    for (int k = 0; k < view.table_rank; ++k) {
      const auto dim = static_cast<std::size_t>(k);
      const IntVec last = hn::Set(di, static_cast<std::int32_t>(view.extents[dim] - 1));
      const IntVec index = load_int(source_of(strip, instruction.args[dim]), i);
      const IntVec clamped = hn::Min(hn::Max(index, hn::Zero(di)), last);
      offset = hn::Add(offset, hn::Mul(clamped, hn::Set(di, static_cast<std::int32_t>(view.table_strides[dim]))));
    }
    return hn::GatherIndex(FloatTag(), static_cast<const float*>(view.data), offset);
  });
}

HWY_NOINLINE void gather(const Instruction& instruction, const Strip& strip, const Operands& at) {
  const OperandView& view = strip.operands[instruction.operand];
  if (view.narrow && size_of(view.dtype) == 4) return gather_narrow(instruction, strip, view, at);
  for (std::size_t lane = 0; lane < at.length; ++lane) {
    std::int64_t offset = 0;
    for (int k = 0; k < view.table_rank; ++k) {
      const auto dim = static_cast<std::size_t>(k);
      const LaneSource source = source_of(strip, instruction.args[dim]);
      std::int32_t index = 0;
      std::memcpy(&index, source.data + (source.broadcast ? 0 : lane), 4);
      offset += std::clamp<std::int64_t>(index, 0, view.extents[dim] - 1) * view.table_strides[dim];
    }
    load_lane(view, offset, at.out + lane);
  }
}

HWY_INLINE void run_leaf(const Instruction& instruction, const Strip& strip, const Operands& at) {
  const Position& p = strip.position;
  const auto fill = [&](std::int64_t value) {
    const auto bits = static_cast<std::int32_t>(value);
    std::memcpy(at.out, &bits, 4);
  };
  switch (instruction.op) {
    case Op::kBatchIdx: return fill(p.batch + strip.offsets.batch);
    case Op::kHeadIdx: return fill(p.head + strip.offsets.head);
    case Op::kQueryIdx: return fill_iota(at, p.query + strip.offsets.query);
    case Op::kKeyIdx: return fill_iota(at, p.key + strip.offsets.key);
    case Op::kOperand: return read_operand(instruction, strip, at);
    default: return gather(instruction, strip, at);
  }
}

HWY_INLINE void run_one(const Instruction& instruction, const Strip& strip) {
  Operands at;
  at.out = source_of(strip, instruction.out).data;
  at.length = strip.length;
  if (instruction.op < Op::kAdd) return run_leaf(instruction, strip, at);
  at.x = source_of(strip, instruction.args[0]);
  // Kernels of one argument may load a second: it must be readable.
  at.y = instruction.arg_count > 1 ? source_of(strip, instruction.args[1]) : at.x;
  if (instruction.arg_count > 2) at.z = source_of(strip, instruction.args[2]);

  if (instruction.op == Op::kSelect) return run_select(at);
  if (instruction.op == Op::kSurrogate) return run_float(instruction, at);
  if (instruction.op >= Op::kToF32) return run_cast(instruction, at);
  if (instruction.op >= Op::kAnd) return run_bool(instruction, at);
  if (instruction.op >= Op::kEq) {
    return instruction.arg_type == Type::kF32 ? run_float_comparison(instruction, at)
                                              : run_int_comparison(instruction, at);
  }
  return instruction.type == Type::kF32 ? run_float(instruction, at) : run_int(instruction, at);
}

void run_strip(std::span<const Instruction> code, const Strip& strip) {
  for (const Instruction& instruction : code) run_one(instruction, strip);
}

}  // namespace scoremod::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace scoremod::backend::cpu {

HWY_EXPORT(run_strip);

void run(std::span<const Instruction> code, const Strip& strip) {
  if (!code.empty()) HWY_DYNAMIC_DISPATCH(run_strip)(code, strip);
}

}  // namespace scoremod::backend::cpu
#endif
