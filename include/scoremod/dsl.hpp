#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "scoremod/export.hpp"
#include "scoremod/program.hpp"

/// Programs written as C++ lambdas with ordinary operators:
///
///     Program p = trace([](Score s, Index) { return 50.f * tanh(s / 50.f); },      // score_mod
///                       [](Index i) { return i.q >= i.kv; });                      // mask_mod
///
/// trace() calls each function once, with handles instead of numbers; every operator records an op of the table in
/// docs/reference/ops.md, with exactly that op's meaning. So `%` takes the sign of its right side and i32 arithmetic
/// wraps.
///
/// Types never convert silently, except that literals take the type they are used with. Write f32(i.q) to use an index
/// as a float, floor_div(a, b) to divide integers, and select(c, x, y) in place of C++'s if.
namespace scoremod {

class Float;
class Int;
class Bool;

namespace dsl {

/// A value of the trace under way (trace > 0), or a literal that no trace has seen yet (trace == 0).
struct Handle {
  std::uint64_t trace = 0;
  std::uint32_t payload = 0;  ///< the node in the trace, or the literal's bits
  Type type = Type::kF32;
};

// The functions that the operators below call. Each throws Error(kInvalidArgument) outside of trace(), and for a handle
// that was made in another call of trace().
SCOREMOD_API Handle apply(Op op, std::initializer_list<Handle> args);
SCOREMOD_API Handle read(const OperandDecl& decl, std::initializer_list<Handle> indices);

// A literal's value, refused when the type can't hold it.
SCOREMOD_API Handle f32_literal(double value);
SCOREMOD_API Handle f32_literal(std::int64_t value);
SCOREMOD_API Handle i32_literal(std::int64_t value);
SCOREMOD_API Handle bool_literal(bool value);
/// Throws: the integer literal is beyond int64, hence beyond i32.
[[noreturn]] SCOREMOD_API void refuse_literal(std::uint64_t value);

template <std::integral T>
std::int64_t widen(T value) {
  if (!std::in_range<std::int64_t>(value)) refuse_literal(static_cast<std::uint64_t>(value));
  return static_cast<std::int64_t>(value);
}

template <class T>
concept IntegerLiteral = std::integral<T> && !std::same_as<T, bool>;

}  // namespace dsl

/// A float32 value. Floating-point literals round to the nearest float32; integer literals must be exact in float32.
class Float {
 public:
  explicit Float(dsl::Handle handle) : handle_(handle) {}
  template <std::floating_point T>
  Float(T literal) : handle_(dsl::f32_literal(static_cast<double>(literal))) {}
  template <dsl::IntegerLiteral T>
  Float(T literal) : handle_(dsl::f32_literal(dsl::widen(literal))) {}
  template <std::same_as<bool> T>
  Float(T) = delete;            // a bool is no float: write 1.f or 0.f
  Float(const Int&) = delete;   // convert with f32(x)
  Float(const Bool&) = delete;  // convert with f32(x)

  dsl::Handle handle() const { return handle_; }

  Float& operator+=(Float other);
  Float& operator-=(Float other);
  Float& operator*=(Float other);
  Float& operator/=(Float other);

 private:
  dsl::Handle handle_;
};

/// The score: already multiplied by the problem's scale, and modified by earlier score_mods of a composition.
using Score = Float;

/// An int32 value; arithmetic wraps.
class Int {
 public:
  explicit Int(dsl::Handle handle) : handle_(handle) {}
  template <dsl::IntegerLiteral T>
  Int(T literal) : handle_(dsl::i32_literal(dsl::widen(literal))) {}
  template <std::floating_point T>
  Int(T) = delete;  // a float meets an integer: convert the integer with f32(x)
  template <std::same_as<bool> T>
  Int(T) = delete;             // a bool is no integer: write 1 or 0
  Int(const Float&) = delete;  // convert with i32(x), or the other side with f32(x)
  Int(const Bool&) = delete;   // convert with i32(x)

  dsl::Handle handle() const { return handle_; }

  Int& operator+=(Int other);
  Int& operator-=(Int other);
  Int& operator*=(Int other);

 private:
  dsl::Handle handle_;
};

/// A truth value. It is not known while tracing and does not convert to C++'s bool: where C++ would say `if` or `?:`,
/// use select().
class Bool {
 public:
  explicit Bool(dsl::Handle handle) : handle_(handle) {}
  template <std::same_as<bool> T>
  Bool(T literal) : handle_(dsl::bool_literal(literal)) {}

  dsl::Handle handle() const { return handle_; }

 private:
  dsl::Handle handle_;
};

/// The element's global position: the local one plus the call's IndexOffsets.
struct Index {
  Int b;   ///< batch
  Int h;   ///< query head
  Int q;   ///< query position
  Int kv;  ///< key position
};

namespace dsl {

template <class T>
inline constexpr Type kTypeOf = Type::kF32;
template <>
inline constexpr Type kTypeOf<Int> = Type::kI32;
template <>
inline constexpr Type kTypeOf<Bool> = Type::kBool;

template <class T>
concept Value = std::same_as<T, Float> || std::same_as<T, Int> || std::same_as<T, Bool>;

inline Float f32_op(Op op, Float x) { return Float(apply(op, {x.handle()})); }
inline Float f32_op(Op op, Float x, Float y) { return Float(apply(op, {x.handle(), y.handle()})); }
inline Int i32_op(Op op, Int x) { return Int(apply(op, {x.handle()})); }
inline Int i32_op(Op op, Int x, Int y) { return Int(apply(op, {x.handle(), y.handle()})); }
inline Bool bool_op(Op op, Bool x, Bool y) { return Bool(apply(op, {x.handle(), y.handle()})); }
template <Value T>
Bool comparison(Op op, T x, T y) {
  return Bool(apply(op, {x.handle(), y.handle()}));
}
template <Value T>
T choose(Bool c, T x, T y) {
  return T(apply(Op::kSelect, {c.handle(), x.handle(), y.handle()}));
}

}  // namespace dsl

/// A named tensor that broadcasts: one dimension for each axis, read at the current element; without axes a scalar.
/// `T` is Float (f32, f16 and bf16 tensors), Int or Bool. Use it like a value: `s + slopes * f32(i.kv - i.q)`.
/// Two handles of one name are one operand; they must agree in type and axes.
template <dsl::Value T>
class Operand {
 public:
  explicit Operand(std::string name, const std::vector<Axis>& axes = {}) {
    decl_.name = std::move(name);
    decl_.type = dsl::kTypeOf<T>;
    for (const Axis axis : axes) decl_.axes.at(static_cast<std::size_t>(axis)) = true;
  }

  operator T() const { return T(dsl::read(decl_, {})); }
  /// The value, where a conversion would not be found: `bias.value()`.
  T value() const { return *this; }
  const OperandDecl& declaration() const { return decl_; }

 private:
  OperandDecl decl_;
};

/// A named tensor of rank Rank that is read at computed indices: `bias(i.h, i.q - i.kv + n)`. Each index is clamped to
/// the tensor's extent, so no read is out of bounds.
template <dsl::Value T, int Rank>
requires(Rank >= 1 && Rank <= kMaxTableRank) class Table {
 public:
  explicit Table(std::string name) {
    decl_.name = std::move(name);
    decl_.type = dsl::kTypeOf<T>;
    decl_.table_rank = Rank;
  }

  template <class... Indices>
  requires(sizeof...(Indices) == Rank && (std::convertible_to<Indices, Int> && ...)) T operator()(
      const Indices&... indices) const {
    return T(dsl::read(decl_, {Int(indices).handle()...}));
  }
  const OperandDecl& declaration() const { return decl_; }

 private:
  OperandDecl decl_;
};

// Arithmetic.
inline Float operator+(Float x, Float y) { return dsl::f32_op(Op::kAdd, x, y); }
inline Float operator-(Float x, Float y) { return dsl::f32_op(Op::kSub, x, y); }
inline Float operator*(Float x, Float y) { return dsl::f32_op(Op::kMul, x, y); }
inline Float operator/(Float x, Float y) { return dsl::f32_op(Op::kDiv, x, y); }
inline Float operator%(Float x, Float y) { return dsl::f32_op(Op::kMod, x, y); }
inline Float operator-(Float x) { return dsl::f32_op(Op::kNeg, x); }
inline Int operator+(Int x, Int y) { return dsl::i32_op(Op::kAdd, x, y); }
inline Int operator-(Int x, Int y) { return dsl::i32_op(Op::kSub, x, y); }
inline Int operator*(Int x, Int y) { return dsl::i32_op(Op::kMul, x, y); }
inline Int operator%(Int x, Int y) { return dsl::i32_op(Op::kMod, x, y); }
inline Int operator-(Int x) { return dsl::i32_op(Op::kNeg, x); }
Int operator/(Int x, Int y) = delete;  // say which division: floor_div(x, y), or f32(x) / f32(y)
/// The largest integer not above x / y; x // 0 is 0.
inline Int floor_div(Int x, Int y) { return dsl::i32_op(Op::kFloorDiv, x, y); }

inline Float& Float::operator+=(Float other) { return *this = *this + other; }
inline Float& Float::operator-=(Float other) { return *this = *this - other; }
inline Float& Float::operator*=(Float other) { return *this = *this * other; }
inline Float& Float::operator/=(Float other) { return *this = *this / other; }
inline Int& Int::operator+=(Int other) { return *this = *this + other; }
inline Int& Int::operator-=(Int other) { return *this = *this - other; }
inline Int& Int::operator*=(Int other) { return *this = *this * other; }

// Functions; docs/reference/ops.md has each one's edge cases.
inline Float pow(Float x, Float y) { return dsl::f32_op(Op::kPow, x, y); }
inline Float min(Float x, Float y) { return dsl::f32_op(Op::kMin, x, y); }
inline Float max(Float x, Float y) { return dsl::f32_op(Op::kMax, x, y); }
inline Int min(Int x, Int y) { return dsl::i32_op(Op::kMin, x, y); }
inline Int max(Int x, Int y) { return dsl::i32_op(Op::kMax, x, y); }
inline Float abs(Float x) { return dsl::f32_op(Op::kAbs, x); }
inline Int abs(Int x) { return dsl::i32_op(Op::kAbs, x); }
inline Float sign(Float x) { return dsl::f32_op(Op::kSign, x); }
inline Int sign(Int x) { return dsl::i32_op(Op::kSign, x); }
inline Float floor(Float x) { return dsl::f32_op(Op::kFloor, x); }
inline Float ceil(Float x) { return dsl::f32_op(Op::kCeil, x); }
/// To the nearest integer, halves to even.
inline Float round(Float x) { return dsl::f32_op(Op::kRound, x); }
inline Float exp(Float x) { return dsl::f32_op(Op::kExp, x); }
inline Float exp2(Float x) { return dsl::f32_op(Op::kExp2, x); }
inline Float expm1(Float x) { return dsl::f32_op(Op::kExpm1, x); }
inline Float log(Float x) { return dsl::f32_op(Op::kLog, x); }
inline Float log1p(Float x) { return dsl::f32_op(Op::kLog1p, x); }
inline Float sqrt(Float x) { return dsl::f32_op(Op::kSqrt, x); }
inline Float rsqrt(Float x) { return dsl::f32_op(Op::kRsqrt, x); }
inline Float reciprocal(Float x) { return dsl::f32_op(Op::kReciprocal, x); }
inline Float sin(Float x) { return dsl::f32_op(Op::kSin, x); }
inline Float cos(Float x) { return dsl::f32_op(Op::kCos, x); }
inline Float tan(Float x) { return dsl::f32_op(Op::kTan, x); }
inline Float atan(Float x) { return dsl::f32_op(Op::kAtan, x); }
/// The angle of the point (x, y).
inline Float atan2(Float y, Float x) { return dsl::f32_op(Op::kAtan2, y, x); }
inline Float tanh(Float x) { return dsl::f32_op(Op::kTanh, x); }
inline Float sigmoid(Float x) { return dsl::f32_op(Op::kSigmoid, x); }
inline Float erf(Float x) { return dsl::f32_op(Op::kErf, x); }
inline Float erfc(Float x) { return dsl::f32_op(Op::kErfc, x); }
inline Float softplus(Float x) { return dsl::f32_op(Op::kSoftplus, x); }
inline Float relu(Float x) { return dsl::f32_op(Op::kRelu, x); }
inline Float gelu(Float x) { return dsl::f32_op(Op::kGelu, x); }
inline Float gelu_tanh(Float x) { return dsl::f32_op(Op::kGeluTanh, x); }
inline Float silu(Float x) { return dsl::f32_op(Op::kSilu, x); }

// Comparisons.
inline Bool operator==(Float x, Float y) { return dsl::comparison(Op::kEq, x, y); }
inline Bool operator!=(Float x, Float y) { return dsl::comparison(Op::kNe, x, y); }
inline Bool operator<(Float x, Float y) { return dsl::comparison(Op::kLt, x, y); }
inline Bool operator<=(Float x, Float y) { return dsl::comparison(Op::kLe, x, y); }
inline Bool operator>(Float x, Float y) { return dsl::comparison(Op::kGt, x, y); }
inline Bool operator>=(Float x, Float y) { return dsl::comparison(Op::kGe, x, y); }
inline Bool operator==(Int x, Int y) { return dsl::comparison(Op::kEq, x, y); }
inline Bool operator!=(Int x, Int y) { return dsl::comparison(Op::kNe, x, y); }
inline Bool operator<(Int x, Int y) { return dsl::comparison(Op::kLt, x, y); }
inline Bool operator<=(Int x, Int y) { return dsl::comparison(Op::kLe, x, y); }
inline Bool operator>(Int x, Int y) { return dsl::comparison(Op::kGt, x, y); }
inline Bool operator>=(Int x, Int y) { return dsl::comparison(Op::kGe, x, y); }
inline Bool operator==(Bool x, Bool y) { return dsl::comparison(Op::kEq, x, y); }
inline Bool operator!=(Bool x, Bool y) { return dsl::comparison(Op::kNe, x, y); }

// Truth values. Both sides are always computed: && and || mean the same as & and |.
inline Bool operator&(Bool x, Bool y) { return dsl::bool_op(Op::kAnd, x, y); }
inline Bool operator|(Bool x, Bool y) { return dsl::bool_op(Op::kOr, x, y); }
inline Bool operator^(Bool x, Bool y) { return dsl::bool_op(Op::kXor, x, y); }
inline Bool operator&&(Bool x, Bool y) { return x & y; }
inline Bool operator||(Bool x, Bool y) { return x | y; }
inline Bool operator!(Bool x) { return Bool(dsl::apply(Op::kNot, {x.handle()})); }

/// c ? x : y. The value that is not chosen has no influence, be it NaN or inf.
inline Float select(Bool c, Float x, Float y) { return dsl::choose(c, x, y); }
inline Int select(Bool c, Int x, Int y) { return dsl::choose(c, x, y); }
inline Bool select(Bool c, Bool x, Bool y) { return dsl::choose(c, x, y); }
template <std::floating_point X, std::floating_point Y>
Float select(Bool c, X x, Y y) {
  return dsl::choose(c, Float(x), Float(y));
}
template <dsl::IntegerLiteral X, dsl::IntegerLiteral Y>
Int select(Bool c, X x, Y y) {
  return dsl::choose(c, Int(x), Int(y));
}
/// Another name of select.
template <class X, class Y>
auto where(Bool c, const X& x, const Y& y) {
  return select(c, x, y);
}

/// x, whose derivative is y's: surrogate(round(s), s) lets gradients straight through the rounding.
inline Float surrogate(Float x, Float y) { return dsl::f32_op(Op::kSurrogate, x, y); }
/// x as a constant to derivatives.
inline Float stop_gradient(Float x) { return surrogate(x, 0.0f); }

/// The factor of q k that makes the scores. A bias to be added before the scaling is s + qk_scale() * bias. Call it
/// inside a function that is traced.
SCOREMOD_API Float qk_scale();

/// Casts. To i32: towards zero, saturating, NaN gives 0. To f32: i32 beyond 2^24 rounds to nearest even.
inline Float f32(Float x) { return x; }
inline Float f32(Int x) { return Float(dsl::apply(Op::kToF32, {x.handle()})); }
inline Float f32(Bool x) { return Float(dsl::apply(Op::kToF32, {x.handle()})); }
inline Int i32(Float x) { return Int(dsl::apply(Op::kToI32, {x.handle()})); }
inline Int i32(Int x) { return x; }
inline Int i32(Bool x) { return Int(dsl::apply(Op::kToI32, {x.handle()})); }
inline Bool to_bool(Float x) { return Bool(dsl::apply(Op::kToBool, {x.handle()})); }
inline Bool to_bool(Int x) { return Bool(dsl::apply(Op::kToBool, {x.handle()})); }
inline Bool to_bool(Bool x) { return x; }

/// A score_mod: any function `(Score, Index) -> Float`, or `(Score, Int b, Int h, Int q_idx, Int kv_idx) -> Float`.
/// Empty, it is the identity.
class ScoreMod {
 public:
  ScoreMod() = default;
  template <class F>
  requires(!std::same_as<std::remove_cvref_t<F>, ScoreMod> && std::is_invocable_r_v<Float, const F&, Score, Index>)
      ScoreMod(F function)
      : function_(std::move(function)) {}
  template <class F>
  requires(std::is_invocable_r_v<Float, const F&, Score, Int, Int, Int, Int>) ScoreMod(F function)
      : function_([f = std::move(function)](Score s, Index i) -> Float { return f(s, i.b, i.h, i.q, i.kv); }) {}

  bool empty() const { return !function_; }
  Float operator()(Score score, Index index) const { return function_ ? function_(score, index) : score; }

 private:
  std::function<Float(Score, Index)> function_;
};

/// A mask_mod: any function `(Index) -> Bool`, or `(Int b, Int h, Int q_idx, Int kv_idx) -> Bool`; true keeps the key.
/// Empty, it keeps every key.
class MaskMod {
 public:
  MaskMod() = default;
  template <class F>
  requires(!std::same_as<std::remove_cvref_t<F>, MaskMod> && std::is_invocable_r_v<Bool, const F&, Index>)
      MaskMod(F function)
      : function_(std::move(function)) {}
  template <class F>
  requires(std::is_invocable_r_v<Bool, const F&, Int, Int, Int, Int>) MaskMod(F function)
      : function_([f = std::move(function)](Index i) -> Bool { return f(i.b, i.h, i.q, i.kv); }) {}

  bool empty() const { return !function_; }
  Bool operator()(Index index) const { return function_ ? function_(index) : Bool(true); }

 private:
  std::function<Bool(Index)> function_;
};

/// Applies score_mods one after the other: the first gets the score, each later one the result of the one before.
SCOREMOD_API ScoreMod compose(std::vector<ScoreMod> mods);
/// Keeps elements that every mask keeps; no masks at all keep everything.
SCOREMOD_API MaskMod and_masks(std::vector<MaskMod> masks);
/// Keeps elements that at least one mask keeps. Throws Error(kInvalidArgument) without any mask.
SCOREMOD_API MaskMod or_masks(std::vector<MaskMod> masks);
/// Keeps elements that the mask removes.
SCOREMOD_API MaskMod not_mask(MaskMod mask);

template <std::convertible_to<ScoreMod>... Mods>
ScoreMod compose(Mods... mods) {
  return compose(std::vector<ScoreMod>{std::move(mods)...});
}
template <std::convertible_to<MaskMod>... Masks>
MaskMod and_masks(Masks... masks) {
  return and_masks(std::vector<MaskMod>{std::move(masks)...});
}
template <std::convertible_to<MaskMod>... Masks>
MaskMod or_masks(Masks... masks) {
  return or_masks(std::vector<MaskMod>{std::move(masks)...});
}
inline MaskMod operator&&(MaskMod x, MaskMod y) { return and_masks(std::move(x), std::move(y)); }
inline MaskMod operator||(MaskMod x, MaskMod y) { return or_masks(std::move(x), std::move(y)); }
inline MaskMod operator!(MaskMod x) { return not_mask(std::move(x)); }

/// Calls each function once and returns the program that it describes. Its operands are those that the result depends
/// on, in the order of their first use, read from left to right. Throws Error(kInvalidArgument) for a handle of another
/// trace, and for a program that is too large. It also throws for an operand name that is no identifier or is declared
/// in two ways. An exception of a function passes through.
SCOREMOD_API Program trace(const ScoreMod& score_mod, const MaskMod& mask_mod = {});
/// A program that only masks.
SCOREMOD_API Program trace(const MaskMod& mask_mod);

}  // namespace scoremod
