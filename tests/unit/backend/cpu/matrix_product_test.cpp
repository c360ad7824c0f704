#include "backend/cpu/matrix_product.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cpu/pack.hpp"

namespace scoremod::backend::cpu {
namespace {

struct Sizes {
  std::size_t rows, columns, depth;
  bool transposed, overwrite, factors;
};

std::vector<float> random_numbers(std::size_t count, unsigned seed) {
  std::mt19937 bits(seed);
  std::vector<float> numbers(count);
  for (float& number : numbers) number = static_cast<float>(bits() % 2001) / 1000.0f - 1.0f;
  return numbers;
}

void check(const Sizes& sizes, void (*multiply)(const MatrixProduct&) = matrix_product) {
  const std::size_t a_stride = (sizes.transposed ? sizes.rows : sizes.depth) + 3, b_stride = sizes.columns + 16;
  const std::size_t c_stride = sizes.columns + 5;
  const auto a = random_numbers((sizes.transposed ? sizes.depth : sizes.rows) * a_stride, 1);
  const auto b = random_numbers(sizes.depth * b_stride + 1, 2);
  const auto factor = random_numbers(sizes.rows, 3);
  const auto before = random_numbers(sizes.rows * c_stride, 4);
  auto c = before;
  MatrixProduct product(sizes.rows, sizes.columns, sizes.depth, {a.data(), a_stride}, {b.data(), b_stride},
                        {c.data(), c_stride});
  product.a_transposed = sizes.transposed;
  product.overwrite = sizes.overwrite;
  product.factor = sizes.factors ? factor.data() : nullptr;
  multiply(product);
  for (std::size_t i = 0; i < sizes.rows; ++i) {
    for (std::size_t j = 0; j < c_stride; ++j) {
      const double old = before[i * c_stride + j];
      if (j >= sizes.columns) {
        ASSERT_EQ(c[i * c_stride + j], before[i * c_stride + j]) << "written beyond the columns";
        continue;
      }
      double exact = sizes.overwrite ? 0 : old * (sizes.factors ? factor[i] : 1.0f), magnitude = std::abs(old);
      for (std::size_t k = 0; k < sizes.depth; ++k) {
        const double term = double{a[sizes.transposed ? k * a_stride + i : i * a_stride + k]} * b[k * b_stride + j];
        exact += term;
        magnitude += std::abs(term);
      }
      // The bound of a sum of depth + 1 rounded terms.
      ASSERT_NEAR(c[i * c_stride + j], exact, magnitude * static_cast<double>(sizes.depth + 2) * 6e-8)
          << sizes.rows << " x " << sizes.columns << " x " << sizes.depth << " at " << i << ", " << j;
    }
  }
}

TEST(MatrixProduct, OfPanelsWritesTheColumnsAskedFor) {
  constexpr std::size_t kRows = 5, kDepth = 7, kColumns = 3 * kPanelColumns, kUntouched = 4;
  const auto a = random_numbers(kRows * kDepth, 1);
  const auto columns = random_numbers(kColumns * kDepth, 2);  // each as a row
  std::vector<float> panels(kColumns * kDepth);
  transpose_to_panels(columns.data(), kColumns, kDepth, kDepth, panels.data());
  for (const std::size_t first : {std::size_t{0}, kPanelColumns, 2 * kPanelColumns}) {
    const std::size_t count = kColumns - first - 3;
    const std::size_t stride = kColumns - first + kUntouched;
    std::vector<float> c(kRows * stride, 9);
    matrix_product(kRows, {a.data(), kDepth}, {panels.data(), kDepth, first, count}, {c.data(), stride});
    for (std::size_t i = 0; i < kRows; ++i) {
      for (std::size_t j = 0; j < count; ++j) {
        double exact = 0;
        for (std::size_t k = 0; k < kDepth; ++k) exact += double{a[i * kDepth + k]} * columns[(first + j) * kDepth + k];
        // The bound of a sum of kDepth rounded terms of magnitude 1.
        ASSERT_NEAR(c[i * stride + j], exact, kDepth * (kDepth + 1) * 6e-8) << first << " at " << i << ", " << j;
      }
      for (std::size_t j = stride - kUntouched; j < stride; ++j) ASSERT_EQ(c[i * stride + j], 9);
    }
  }
}

TEST(MatrixProduct, AgreesWithDoubleOnEverySize) {
  for (const std::size_t rows : {1, 2, 3, 5, 6, 7, 8, 11, 12, 13, 23, 24, 37}) {
    for (const std::size_t columns : {16, 32, 48, 80}) {
      for (const std::size_t depth : {1, 3, 4, 5, 64}) {
        check({rows, columns, depth, false, true, false});
        check({rows, columns, depth, false, false, true});
        check({rows, columns, depth, true, false, false});
      }
    }
  }
}

TEST(MatrixProduct, OverwritesWhatIsNotANumber) {
  std::vector<float> a{2}, b(16, 3.0f), c(16, std::nanf(""));
  MatrixProduct product(1, 16, 1, {a.data(), 1}, {b.data(), 16}, {c.data(), 16});
  product.overwrite = true;
  matrix_product(product);
  for (const float value : c) EXPECT_EQ(value, 6.0f);
}

TEST(MatrixProduct, OfWhatHasAWeightIsTheSameProduct) {
  // A itself as the weights leaves out nothing that counts.
  const auto multiply = [](const MatrixProduct& product) { matrix_product_of_weighted(product, product.a); };
  check({13, 48, 5, false, true, false}, multiply);
  check({13, 48, 5, false, false, true}, multiply);
  check({13, 48, 5, true, false, false}, multiply);
}

TEST(MatrixProduct, LeavesOutWhatHasNoWeight) {
  for (const bool transposed : {false, true}) {
    // Row 0 of A gives row 1 of B no weight; the zero in row 1 of A has one.
    const std::vector<float> weights = transposed ? std::vector<float>{1, 1, 0, 1} : std::vector<float>{1, 0, 1, 1};
    const std::vector<float> a = transposed ? std::vector<float>{2, 4, 7, 0} : std::vector<float>{2, 7, 4, 0};
    std::vector<float> b(32, 3.0f), c(32, 1.0f);
    std::fill(b.begin() + 16, b.end(), std::numeric_limits<float>::infinity());
    MatrixProduct product(2, 16, 2, {a.data(), 2}, {b.data(), 16}, {c.data(), 16});
    product.a_transposed = transposed;
    matrix_product_of_weighted(product, weights.data());
    for (std::size_t d = 0; d < 16; ++d) {
      EXPECT_EQ(c[d], 7.0f);
      EXPECT_TRUE(std::isnan(c[16 + d]));
    }
  }
}

}  // namespace
}  // namespace scoremod::backend::cpu
