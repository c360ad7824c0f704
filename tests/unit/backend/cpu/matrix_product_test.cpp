#include "backend/cpu/matrix_product.hpp"

#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

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

void check(const Sizes& sizes) {
  const std::size_t a_stride = (sizes.transposed ? sizes.rows : sizes.depth) + 3, b_stride = sizes.columns + 16;
  const std::size_t c_stride = sizes.columns + 5;
  const auto a = random_numbers((sizes.transposed ? sizes.depth : sizes.rows) * a_stride, 1);
  const auto b = random_numbers(sizes.depth * b_stride + 1, 2);
  const auto factor = random_numbers(sizes.rows, 3);
  const auto before = random_numbers(sizes.rows * c_stride, 4);
  auto c = before;
  MatrixProduct product;
  product.rows = sizes.rows;
  product.columns = sizes.columns;
  product.depth = sizes.depth;
  product.a = a.data();
  product.a_row_stride = static_cast<std::ptrdiff_t>(a_stride);
  product.a_transposed = sizes.transposed;
  product.b = b.data();
  product.b_row_stride = static_cast<std::ptrdiff_t>(b_stride);
  product.c = c.data();
  product.c_row_stride = static_cast<std::ptrdiff_t>(c_stride);
  product.overwrite = sizes.overwrite;
  product.factor = sizes.factors ? factor.data() : nullptr;
  matrix_product(product);
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
  MatrixProduct product;
  product.rows = product.depth = 1;
  product.columns = 16;
  product.a = a.data();
  product.a_row_stride = 1;
  product.b = b.data();
  product.b_row_stride = 16;
  product.c = c.data();
  product.c_row_stride = 16;
  product.overwrite = true;
  matrix_product(product);
  for (const float value : c) EXPECT_EQ(value, 6.0f);
}

}  // namespace
}  // namespace scoremod::backend::cpu
