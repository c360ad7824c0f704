#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/reference/double_kernels.hpp"

namespace scoremod::backend::reference {

/// Rows of a matrix for add_product(), zero beyond its columns.
struct Matrix {
  std::size_t columns = 0, stride = 0;
  std::vector<double> data;
  bool finite = true;

  Matrix() = default;
  Matrix(std::size_t rows, std::size_t column_count)
      : columns(column_count),
        stride((column_count + kDoubleAlignment - 1) / kDoubleAlignment * kDoubleAlignment),
        data(rows * stride) {}

  double* row(std::size_t r) { return data.data() + r * stride; }
  const double* row(std::size_t r) const { return data.data() + r * stride; }
  void clear() { std::fill(data.begin(), data.end(), 0.0); }

  /// Copies `rows` dense rows.
  void load(const double* from, std::size_t rows) {
    finite = std::all_of(from, from + rows * columns, [](double x) { return std::isfinite(x); });
    for (std::size_t r = 0; r < rows; ++r) std::copy_n(from + r * columns, columns, row(r));
  }
  void load_transposed(const Matrix& from, std::size_t rows) {
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t c = 0; c < from.columns; ++c) row(c)[r] = from.row(r)[c];
    }
  }
};

/// out = a b, where a's terms that are not finite belong to their row or column alone.
void multiply(const Matrix& a, std::size_t rows, const Matrix& b, std::size_t depth, Matrix& out);

/// Adds a product; without the terms that are not kept, where B is not finite: 0 * inf is NaN. A's rows and steps are a
/// query and a key, in either order.
void add_kept(const DoubleProduct& p, bool finite, const std::vector<std::uint8_t>& kept);

}  // namespace scoremod::backend::reference
