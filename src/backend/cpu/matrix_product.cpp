#include "backend/cpu/matrix_product.hpp"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/matrix_product.cpp"
#include <hwy/foreach_target.h>
// clang-format off: foreach_target.h comes first.
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace scoremod::backend::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Tag = hn::ScalableTag<float>;
using Vec = hn::Vec<Tag>;

// Accumulators of one register block are kMaxRows by 2 vectors: 24 of the 32 registers of AVX-512, 12 of the 16 of
// older sets. The rest hold two vectors of B and one broadcast element of A.
#if HWY_TARGET <= HWY_AVX3
constexpr int kMaxRows = 12;
#else
constexpr int kMaxRows = 6;
#endif

/// Element (row, step) of A relative to the block's first row. Row-major rows are addressed from every third row,
/// because x86 addresses reach base + {1, 2} * stride but not further.
template <int kRows, bool kTransposed>
struct ARows {
  static constexpr int kBases = kTransposed ? 1 : (kRows + 2) / 3;
  const float* base[kBases];
  std::ptrdiff_t stride;

  HWY_INLINE ARows(const float* a, std::ptrdiff_t row_stride) : stride(row_stride) {
    for (int i = 0; i < kBases; ++i) base[i] = a + 3 * i * row_stride;
  }
  HWY_INLINE float at(int row, int step) const {
    if constexpr (kTransposed) return base[0][step * stride + row];
    return base[row / 3][(row % 3) * stride + step];
  }
  HWY_INLINE void advance(int steps) {
    for (int i = 0; i < kBases; ++i) base[i] += kTransposed ? steps * stride : steps;
  }
};

template <int kRows, int kVectors, bool kTransposed>
HWY_NOINLINE void register_block(const MatrixProduct& p, const float* a, const float* b, float* c,
                                 const float* factor) {
  const Tag d;
  const std::size_t lanes = hn::Lanes(d);
  Vec sums[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::Zero(d);
  }
  ARows<kRows, kTransposed> rows(a, p.a_row_stride);
  const auto step = [&](int k) HWY_ATTR {
    Vec row_of_b[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) row_of_b[v] = hn::LoadU(d, b + k * p.b_row_stride + v * lanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Vec element = hn::Set(d, rows.at(r, k));
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::MulAdd(element, row_of_b[v], sums[r][v]);
    }
  };
  constexpr int kUnroll = 4;
  std::size_t k = 0;
  for (; k + kUnroll <= p.depth; k += kUnroll) {
#pragma GCC unroll 4
    for (int u = 0; u < kUnroll; ++u) step(u);
    rows.advance(kUnroll);
    b += kUnroll * p.b_row_stride;
  }
  for (; k < p.depth; ++k) {
    step(0);
    rows.advance(1);
    b += p.b_row_stride;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const Vec scale = hn::Set(d, factor != nullptr ? factor[r] : 1.0f);
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      float* out = c + r * p.c_row_stride + v * lanes;
      if (!p.overwrite) sums[r][v] = hn::MulAdd(hn::LoadU(d, out), scale, sums[r][v]);
      hn::StoreU(sums[r][v], d, out);
    }
  }
}

template <int kRows, bool kTransposed>
HWY_INLINE void all_columns(const MatrixProduct& p, std::size_t row, std::size_t column, std::size_t vectors) {
  const float* a = p.a + static_cast<std::ptrdiff_t>(row) * (kTransposed ? 1 : p.a_row_stride);
  float* c = p.c + static_cast<std::ptrdiff_t>(row) * p.c_row_stride + column;
  const float* factor = p.factor != nullptr ? p.factor + row : nullptr;
  if (vectors == 2) return register_block<kRows, 2, kTransposed>(p, a, p.b + column, c, factor);
  register_block<kRows, 1, kTransposed>(p, a, p.b + column, c, factor);
}

template <bool kTransposed>
HWY_INLINE void column_block(const MatrixProduct& p, std::size_t column, std::size_t vectors) {
  std::size_t row = 0;
  while (row < p.rows) {
    const std::size_t left = p.rows - row;
    if (left >= kMaxRows) {
      all_columns<kMaxRows, kTransposed>(p, row, column, vectors);
      row += kMaxRows;
    } else if (kMaxRows > 8 && left >= 8) {
      all_columns<kMaxRows - 4, kTransposed>(p, row, column, vectors);
      row += kMaxRows - 4;
    } else if (left >= 4) {
      all_columns<4, kTransposed>(p, row, column, vectors);
      row += 4;
    } else if (left >= 2) {
      all_columns<2, kTransposed>(p, row, column, vectors);
      row += 2;
    } else {
      all_columns<1, kTransposed>(p, row, column, vectors);
      row += 1;
    }
  }
}

void multiply(const MatrixProduct& p) {
  const std::size_t lanes = hn::Lanes(Tag());
  for (std::size_t column = 0; column < p.columns;) {
    const std::size_t vectors = std::min<std::size_t>(2, (p.columns - column) / lanes);
    if (p.a_transposed) {
      column_block<true>(p, column, vectors);
    } else {
      column_block<false>(p, column, vectors);
    }
    column += vectors * lanes;
  }
}

}  // namespace scoremod::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace scoremod::backend::cpu {

HWY_EXPORT(multiply);

void matrix_product(const MatrixProduct& product) {
  if (product.rows != 0 && product.columns != 0) HWY_DYNAMIC_DISPATCH(multiply)(product);
}

void matrix_product(std::size_t rows, Rows<const float> a, const PanelColumns& b, Rows<float> c) {
  MatrixProduct product(rows, kPanelColumns, b.depth, a, {b.panels, kPanelColumns}, c);
  product.overwrite = true;
  for (std::size_t done = 0; done < b.count; done += kPanelColumns) {
    product.b = b.panels + (b.first + done) * b.depth;
    product.c = c.data + done;
    matrix_product(product);
  }
}

void matrix_product_of_weighted(const MatrixProduct& p, const float* weights) {
  const auto columns = static_cast<std::ptrdiff_t>(p.columns);
  for (std::ptrdiff_t row = 0; row < static_cast<std::ptrdiff_t>(p.rows); ++row) {
    float* out = p.c + row * p.c_row_stride;
    const float factor = p.factor != nullptr ? p.factor[row] : 1.0f;
    for (std::ptrdiff_t d = 0; d < columns; ++d) out[d] = p.overwrite ? 0.0f : out[d] * factor;
    for (std::ptrdiff_t k = 0; k < static_cast<std::ptrdiff_t>(p.depth); ++k) {
      const std::ptrdiff_t at = p.a_transposed ? k * p.a_row_stride + row : row * p.a_row_stride + k;
      if (weights[at] == 0) continue;
      const float* b = p.b + k * p.b_row_stride;
      for (std::ptrdiff_t d = 0; d < columns; ++d) out[d] += p.a[at] * b[d];
    }
  }
}

}  // namespace scoremod::backend::cpu
#endif
