#pragma once

#include <cstddef>

namespace scoremod::backend::cpu {

/// Columns of one panel of a matrix packed for matrix_product, on every instruction set.
inline constexpr std::size_t kPanelColumns = 32;
/// Row strides and column counts of packed matrices are multiples of this, the lanes of the widest vector.
inline constexpr std::size_t kColumnAlignment = 16;
/// The most rows that a register block has on any instruction set: work in multiples of it is best.
inline constexpr std::size_t kRowBlock = 12;

/// A row-major f32 matrix: its first element, and how far its rows are apart.
template <class Float>
struct Rows {
  Float* data = nullptr;
  std::size_t stride = 0;
};

/// C = factor * C + A B for row-major f32 matrices that fit the caches. A is read with any of the two strides 1.
struct MatrixProduct {
  /// `matrix_columns` is a multiple of kColumnAlignment; B and C have that many, padding included.
  MatrixProduct(std::size_t matrix_rows, std::size_t matrix_columns, std::size_t inner, Rows<const float> a_rows,
                Rows<const float> b_rows, Rows<float> c_rows)
      : rows(matrix_rows),
        columns(matrix_columns),
        depth(inner),
        a(a_rows.data),
        a_row_stride(static_cast<std::ptrdiff_t>(a_rows.stride)),
        b(b_rows.data),
        b_row_stride(static_cast<std::ptrdiff_t>(b_rows.stride)),
        c(c_rows.data),
        c_row_stride(static_cast<std::ptrdiff_t>(c_rows.stride)) {}

  std::size_t rows;
  std::size_t columns;
  std::size_t depth;
  const float* a;
  std::ptrdiff_t a_row_stride;  ///< when a_transposed: the distance along the depth instead
  const float* b;
  std::ptrdiff_t b_row_stride;
  float* c;
  std::ptrdiff_t c_row_stride;
  bool a_transposed = false;      ///< A is stored depth by rows
  bool overwrite = false;         ///< C = A B: C is not read
  const float* factor = nullptr;  ///< one for each row of C; null means 1
};

void matrix_product(const MatrixProduct& product);

/// Columns of a matrix that is packed in panels of kPanelColumns columns: transpose_to_panels().
struct PanelColumns {
  const float* panels = nullptr;
  std::size_t depth = 0;  ///< rows of the matrix
  std::size_t first = 0;  ///< a multiple of kPanelColumns
  std::size_t count = 0;
};

/// C = A B. Writes C up to the end of the last panel.
void matrix_product(std::size_t rows, Rows<const float> a, const PanelColumns& b, Rows<float> c);

/// As matrix_product, without the terms for which `weights`, laid out as A is, holds 0. For a B that is not finite
/// everywhere, because 0 * inf is NaN. Slow.
void matrix_product_of_weighted(const MatrixProduct& product, const float* weights);

}  // namespace scoremod::backend::cpu
