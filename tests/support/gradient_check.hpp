#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "scoremod/program.hpp"

namespace scoremod::test {

/// How many entries each dimension of a table has in a gradient check.
inline constexpr int kTableExtent = 4;

/// Values for everything that a program reads at one element. An operand has one entry, a table kTableExtent in each
/// dimension; i32 and bool operands hold whole numbers.
struct GradientPoint {
  double score = 0;
  double upstream = 1;
  std::int32_t b = 0, h = 0, q = 0, kv = 0;
  std::vector<std::vector<double>> operands;
};

/// A point with scores and operand entries from [low, high] and indices below 12.
GradientPoint random_point(const Program& program, std::mt19937& random, double low, double high);

/// The result of one comparison of a derivative with finite differences.
struct GradientReport {
  int compared = 0;      ///< partial derivatives held against a finite difference
  int skipped = 0;       ///< where finite differences do not converge: beside kinks, jumps and poles
  std::string mismatch;  ///< the first difference above its tolerance; empty when there is none
};

/// Holds every adjoint of `derivative` against finite differences of `program`'s value, all in float64. The differences
/// come from Ridders' extrapolation (Adv. Eng. Software 4, 1982), whose own error estimate, plus the rounding of the
/// f32 constants in the derivative, is the tolerance.
GradientReport check_gradient(const Program& program, const Program& derivative, const GradientPoint& point);

}  // namespace scoremod::test
