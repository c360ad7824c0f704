#include "backend/cuda/text/exact_sum.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cuda/text/kernel_text.hpp"
#include "backend/cuda/text/program_source.hpp"
#include "base/fail.hpp"
#include "support/host_library.hpp"
#include "support/test_seed.hpp"

namespace scoremod::backend::cuda {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// The generated code, compiled for the host, summing its inputs in the order given.
class ExactSum : public ::testing::Test {
 protected:
  static float sum(const std::vector<float>& values) {
    static const test::HostLibrary library(
        concat(file_text("backend/cuda/text/program_prelude.cuh"), file_text("backend/cuda/text/exact_sum.cuh"),
               "extern \"C\" float sum_all(const float* values, long long count, long long* sums) {\n"
               "for (long long i = 0; i < count; ++i) add_to(sums, 1, values[i]);\nreturn sum_at(sums, 1);\n}\n"));
    using Function = float (*)(const float*, long long, long long*);
    // The sum before and the one after it must stay as they are.
    std::array<long long, 3 * kExactSumWords> words{};
    const float result = library.function<Function>("sum_all")(values.data(), std::ssize(values), words.data());
    EXPECT_TRUE(std::all_of(words.begin(), words.begin() + kExactSumWords, [](long long word) { return word == 0; }));
    EXPECT_TRUE(std::all_of(words.end() - kExactSumWords, words.end(), [](long long word) { return word == 0; }));
    return result;
  }
};

std::uint32_t bits(float value) { return std::bit_cast<std::uint32_t>(value); }

TEST_F(ExactSum, IsTheSameInEveryOrder) {
  const std::uint64_t seed = test::test_seed();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 50; ++round) {
    // Sums in float32 that depend on the order: magnitudes from subnormal to the largest, both signs.
    std::vector<float> values;
    for (int i = 0; i < 400; ++i) {
      float value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
      if (!std::isfinite(value)) value = 1e-40f;
      int exponent = 0;
      if (round % 2 == 0) value = std::ldexp(std::frexp(value, &exponent), static_cast<int>(random() % 40));
      values.push_back(value);
    }
    const float first = sum(values);
    for (int i = 0; i < 5; ++i) {
      std::shuffle(values.begin(), values.end(), random);
      ASSERT_EQ(bits(sum(values)), bits(first)) << "seed " << seed << ", round " << round;
    }
  }
}

TEST_F(ExactSum, IsRoundedOnce) {
  const std::uint64_t seed = test::test_seed();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    // Integers and halves add up exactly in long double.
    std::vector<float> values;
    long double exact = 0;
    for (int i = 0; i < 300; ++i) {
      values.push_back(std::ldexp(static_cast<float>(static_cast<std::int32_t>(random() % 20001) - 10000),
                                  static_cast<int>(random() % 30) - 15));
      exact += static_cast<long double>(values.back());
    }
    ASSERT_EQ(sum(values), static_cast<float>(exact)) << "seed " << seed << ", round " << round;
  }
}

TEST_F(ExactSum, OfOneValueIsTheValue) {
  for (const float value : {0.0f, 1.0f, -1.5f, 0x1p-149f, -0x1.fffffcp-127f, 0x1p-126f, 0x1.fffffep127f,
                            -0x1.fffffep127f, 0x1.234568p-3f, 3.0f}) {
    EXPECT_EQ(bits(sum({value})), bits(value)) << value;
  }
}

TEST_F(ExactSum, CancelsExactly) {
  EXPECT_EQ(sum({0x1.fffffep127f, 0x1p-149f, -0x1.fffffep127f}), 0x1p-149f);
  EXPECT_EQ(sum({1e30f, 1.0f, -1e30f, -1.0f}), 0.0f);
  EXPECT_EQ(sum({0x1.fffffep127f, 0x1.fffffep127f, -0x1.fffffep127f}), 0x1.fffffep127f);
}

TEST_F(ExactSum, TreatsInfinitiesAndNanAsAdditionDoes) {
  EXPECT_EQ(sum({1.0f, kInfinity, -3e38f}), kInfinity);
  EXPECT_EQ(sum({-kInfinity, 5.0f}), -kInfinity);
  EXPECT_TRUE(std::isnan(sum({kInfinity, 1.0f, -kInfinity})));
  EXPECT_TRUE(std::isnan(sum({1.0f, std::numeric_limits<float>::quiet_NaN()})));
  EXPECT_EQ(sum({0x1.fffffep127f, 0x1.fffffep127f}), kInfinity);
  EXPECT_EQ(sum({}), 0.0f);
}

}  // namespace
}  // namespace scoremod::backend::cuda
