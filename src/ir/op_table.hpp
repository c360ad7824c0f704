#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "scoremod/program.hpp"

namespace scoremod::ir {

/// The argument types that an op takes and the type that it returns.
enum class Signature : std::uint8_t {
  kLeaf,          ///< no arguments, or (gather) i32 indices; the builder knows the type
  kFloatUnary,    ///< f32 -> f32
  kNumberUnary,   ///< T -> T for f32, i32
  kFloatBinary,   ///< f32, f32 -> f32
  kNumberBinary,  ///< T, T -> T for f32, i32
  kIntBinary,     ///< i32, i32 -> i32
  kEquality,      ///< T, T -> bool for f32, i32, bool
  kOrdering,      ///< T, T -> bool for f32, i32
  kBoolBinary,    ///< bool, bool -> bool
  kBoolUnary,     ///< bool -> bool
  kSelect,        ///< bool, T, T -> T for every type
  kCast,          ///< any type -> the op's own type
};

/// How the text form writes an op. Infix ops bind tighter the higher their precedence.
enum class Notation : std::uint8_t { kKeyword, kCall, kInfix, kPrefix };

inline constexpr int kOrPrecedence = 1;
inline constexpr int kXorPrecedence = 2;
inline constexpr int kAndPrecedence = 3;
inline constexpr int kComparePrecedence = 4;
inline constexpr int kSumPrecedence = 5;
inline constexpr int kProductPrecedence = 6;
inline constexpr int kPrefixPrecedence = 7;
inline constexpr int kPrimaryPrecedence = 8;

/// One row of the op table.
struct OpInfo {
  Op op;
  const char* name;  ///< the text form's keyword, function name or symbol
  Notation notation;
  int precedence;
  Signature signature;
  int arity;
  bool commutative;
  const char* meaning;
  const char* edge_cases;
};

/// Every op, indexed by its enum value.
std::span<const OpInfo> op_table();
const OpInfo& info(Op op);
/// The op that the text form writes as a call or keyword of this name.
std::optional<Op> find_op(std::string_view name);
std::optional<Op> find_infix(std::string_view symbol);

/// The result type of op applied to arguments of these types; empty with a reason in *why when they do not fit.
std::optional<Type> infer_type(Op op, std::span<const Type> args, std::string* why);

/// The text form's names of the axes: "b", "h", "q_idx", "kv_idx".
const char* axis_name(Axis axis);
std::optional<Axis> find_axis(std::string_view name);

}  // namespace scoremod::ir
