#pragma once

#include <cmath>
#include <limits>

namespace scoremod::checking {

inline constexpr double kFloatRoundoff = 0x1p-24;

inline double square(double x) { return x * x; }

/// The move of a float32 sum whose terms have this magnitude. It is unbounded if the sum may overflow on the way, which
/// depends on the order.
inline double unless_overflow(double magnitude, double move) {
  return magnitude > std::numeric_limits<float>::max() ? std::numeric_limits<double>::infinity() : move;
}

/// A sum in float32: its value, and the square of its roundings' moves. Each product and each partial sum is rounded.
struct RoundedSum {
  double value = 0, magnitude = 0, square_move = 0;

  void add(double term) {
    value += term;
    magnitude += std::abs(term);
    square_move += square(kFloatRoundoff * term) + square(kFloatRoundoff * value);
  }
};

}  // namespace scoremod::checking
