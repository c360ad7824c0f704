#pragma once

#include <cstddef>
#include <string_view>

namespace scoremod::embedded {

/// Sums of float32 values that do not depend on the order of addition, however many threads add at once. Every value is
/// split, without rounding, into digits of a fixed-point number as wide as float32's whole range. The digits are
/// integers that are added atomically, and rounded once, when the sum is read.
///
/// The text, C++ for NVRTC and for a host compiler alike, needs kProgramPrelude before it and defines
///
///     add_to(long long* sums, long long entry, float value), exact;  add_to(float* sums, ...), atomic, in float32
///     sum_at(const long long* sums, long long entry) -> float;       sum_at(const float* sums, ...)
///
/// A sum of zeroed memory is 0. It holds 2^39 values; infinities and NaN propagate as in a plain sum.
extern const std::string_view kExactSum;

}  // namespace scoremod::embedded

namespace scoremod::backend::cuda {

/// 64-bit words of one exact sum: 12 digits of 24 bits, the lowest worth 2^-149, and one for infinities and NaN.
inline constexpr std::size_t kExactSumWords = 13;
inline constexpr std::size_t kExactSumBytes = kExactSumWords * sizeof(long long);

}  // namespace scoremod::backend::cuda
