#pragma once

#include <cstddef>

namespace scoremod::backend::reference {

/// Columns of B and C are multiples of this, padding included: the lanes of the widest vector of doubles.
inline constexpr std::size_t kDoubleAlignment = 8;

/// C += A B in float64. A is read at a[row * a_row_stride + step * a_step_stride], so that it may be transposed; rows
/// of B and C are contiguous.
struct DoubleProduct {
  std::size_t rows = 0, columns = 0, depth = 0;
  const double* a = nullptr;
  std::size_t a_row_stride = 0, a_step_stride = 1;
  const double* b = nullptr;
  std::size_t b_stride = 0;
  double* c = nullptr;
  std::size_t c_stride = 0;
};

void add_product(const DoubleProduct& product);

/// Replaces each x by exp(x - largest), within an ulp; no x exceeds `largest`. NaN stays NaN. Writes up to the next
/// multiple of kDoubleAlignment.
void exponentiate(double* numbers, std::size_t count, double largest);

}  // namespace scoremod::backend::reference
