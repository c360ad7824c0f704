#include "backend/reference/padded_matrix.hpp"

namespace scoremod::backend::reference {

void multiply(const Matrix& a, std::size_t rows, const Matrix& b, std::size_t depth, Matrix& out) {
  out.clear();
  add_product(
      {rows, b.stride, depth, a.data.data(), a.stride, 1, b.data.data(), b.stride, out.data.data(), out.stride});
}

void add_kept(const DoubleProduct& p, bool finite, const std::vector<std::uint8_t>& kept) {
  if (finite) return add_product(p);
  for (std::size_t row = 0; row < p.rows; ++row) {
    for (std::size_t step = 0; step < p.depth; ++step) {
      const std::size_t at = row * p.a_row_stride + step * p.a_step_stride;
      if (kept[at] == 0) continue;
      for (std::size_t c = 0; c < p.columns; ++c) p.c[row * p.c_stride + c] += p.a[at] * p.b[step * p.b_stride + c];
    }
  }
}

}  // namespace scoremod::backend::reference
