#pragma once

#include <cstddef>

namespace scoremod::backend::cpu {

/// Columns of one panel of a matrix packed for matrix_product, on every instruction set.
inline constexpr std::size_t kPanelColumns = 32;
/// Row strides and column counts of packed matrices are multiples of this, the lanes of the widest vector.
inline constexpr std::size_t kColumnAlignment = 16;
/// The most rows that a register block has on any instruction set: work in multiples of it is best.
inline constexpr std::size_t kRowBlock = 12;

/// C = factor * C + A B for row-major f32 matrices that fit the caches. A is read with any of the two strides 1.
struct MatrixProduct {
  std::size_t rows = 0;
  std::size_t columns = 0;  ///< a multiple of kColumnAlignment; B and C have that many, padding included
  std::size_t depth = 0;
  const float* a = nullptr;
  std::ptrdiff_t a_row_stride = 0;  ///< when a_transposed: the distance along the depth instead
  bool a_transposed = false;        ///< A is stored depth by rows
  const float* b = nullptr;
  std::ptrdiff_t b_row_stride = 0;
  float* c = nullptr;
  std::ptrdiff_t c_row_stride = 0;
  bool overwrite = false;         ///< C = A B: C is not read
  const float* factor = nullptr;  ///< one for each row of C; null means 1
};

void matrix_product(const MatrixProduct& product);

}  // namespace scoremod::backend::cpu
