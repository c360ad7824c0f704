#pragma once

#include <optional>
#include <span>

#include "scoremod/program.hpp"

namespace scoremod::checking {

/// A generator's knowledge of a value that it made: which numbers it can be, and whether float32 and float64 agree on
/// it.
struct ValueRange {
  double low = 0, high = 0;  ///< inclusive; no meaning for bool
  /// The value is equal in float32 and in float64, and does not change when the score or a float operand changes a
  /// little. This holds for indices, constants and integers computed from them.
  bool exact = true;
  /// An f32 that always is an integer of at most 2^24.
  bool integral = false;
};

/// The range of op applied to arguments of these ranges. It is absent if the result could be infinite, NaN or beyond
/// kTameFloat or kTameInt. So it is if float32 would have few right digits: outside a function's domain and near its
/// poles.
std::optional<ValueRange> tame_result(Op op, Type result_type, std::span<const Type> types,
                                      std::span<const ValueRange> args);
inline constexpr double kTameFloat = 1e4;
inline constexpr double kTameInt = 1 << 20;

/// True when the result jumps somewhere: comparisons, roundings, sign, mod and casts of f32.
bool has_jump(Op op, Type arg_type);
/// True when the derivative jumps somewhere: the above, and abs, min, max and relu of f32.
bool has_kink(Op op, Type arg_type);

}  // namespace scoremod::checking
