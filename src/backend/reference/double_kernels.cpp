#include "backend/reference/double_kernels.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/reference/double_kernels.cpp"
#include <hwy/foreach_target.h>
// clang-format off: foreach_target.h comes first.
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace scoremod::backend::reference::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Tag = hn::CappedTag<double, kDoubleAlignment>;
using Vec = hn::Vec<Tag>;

/// kRows by two vectors of C, in registers over the whole depth.
template <int kRows, int kVectors>
HWY_NOINLINE void register_block(const DoubleProduct& p, std::size_t row, std::size_t column) {
  const Tag d;
  const std::size_t lanes = hn::Lanes(d);
  Vec sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::Zero(d);
  }
  const double* a = p.a + row * p.a_row_stride;
  const double* b = p.b + column;
  for (std::size_t k = 0; k < p.depth; ++k, a += p.a_step_stride, b += p.b_stride) {
    Vec row_of_b[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) row_of_b[v] = hn::LoadU(d, b + static_cast<std::size_t>(v) * lanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec element = hn::Set(d, a[static_cast<std::size_t>(r) * p.a_row_stride]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::MulAdd(element, row_of_b[v], sums[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    double* c = p.c + (row + static_cast<std::size_t>(r)) * p.c_stride + column;
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      double* out = c + static_cast<std::size_t>(v) * lanes;
      hn::StoreU(hn::Add(hn::LoadU(d, out), sums[r][v]), d, out);
    }
  }
}

template <int kVectors>
HWY_INLINE void column_block(const DoubleProduct& p, std::size_t column) {
  std::size_t row = 0;
  for (; row + 4 <= p.rows; row += 4) register_block<4, kVectors>(p, row, column);
  for (; row < p.rows; ++row) register_block<1, kVectors>(p, row, column);
}

void multiply(const DoubleProduct& p) {
  const std::size_t lanes = hn::Lanes(Tag());
  std::size_t column = 0;
  for (; column + 2 * lanes <= p.columns; column += 2 * lanes) column_block<2>(p, column);
  for (; column < p.columns; column += lanes) column_block<1>(p, column);
}

void exponentiate_row(double* numbers, std::size_t count, double largest) {
  const Tag d;
  const Vec shift = hn::Set(d, largest);
  for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
    const Vec x = hn::Sub(hn::LoadU(d, numbers + i), shift);
    // Highway's gives 0 for NaN.
    hn::StoreU(hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x)), d, numbers + i);
  }
}

}  // namespace scoremod::backend::reference::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace scoremod::backend::reference {

HWY_EXPORT(multiply);
HWY_EXPORT(exponentiate_row);

void add_product(const DoubleProduct& product) { HWY_DYNAMIC_DISPATCH(multiply)(product); }

void exponentiate(double* numbers, std::size_t count, double largest) {
  HWY_DYNAMIC_DISPATCH(exponentiate_row)(numbers, count, largest);
}

}  // namespace scoremod::backend::reference
#endif
