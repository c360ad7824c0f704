#include "base/float16.hpp"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace scoremod {
namespace {

/// A 16-bit format from its definition, to hold the bit arithmetic against.
struct Format {
  const char* name;
  int exponent_bits;
  std::uint16_t (*encode)(double);
  float (*decode)(std::uint16_t);

  int mantissa_bits() const { return 15 - exponent_bits; }

  double value_of(std::uint16_t bits) const {
    const int exponent = (bits & 0x7fff) >> mantissa_bits();
    const int mantissa = bits & ((1 << mantissa_bits()) - 1);
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const double sign = (bits & 0x8000) != 0 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1) {
      return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
    }
    const double significand = exponent == 0 ? mantissa : mantissa + (1 << mantissa_bits());
    return sign * std::ldexp(significand, std::max(exponent, 1) - bias - mantissa_bits());
  }
};

class Float16 : public ::testing::TestWithParam<Format> {};

TEST_P(Float16, EveryValueDecodesToItsDefinitionAndBack) {
  const Format& format = GetParam();
  for (std::uint32_t i = 0; i <= 0xffff; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const double expected = format.value_of(bits);
    const float decoded = format.decode(bits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(decoded)) << i;
      const std::uint16_t again = format.encode(decoded);
      ASSERT_TRUE(std::isnan(format.value_of(again))) << i;
      ASSERT_EQ(again & 0x8000, bits & 0x8000) << i;
      continue;
    }
    ASSERT_EQ(decoded, expected) << i;
    ASSERT_EQ(std::signbit(decoded), std::signbit(expected)) << i;
    ASSERT_EQ(format.encode(expected), bits) << i;
  }
}

TEST_P(Float16, RoundsToNearestWithTiesToEvenBetweenAllNeighbours) {
  const Format& format = GetParam();
  const auto infinity = static_cast<std::uint16_t>(((1 << format.exponent_bits) - 1) << format.mantissa_bits());
  for (std::uint16_t low = 0; low < infinity; ++low) {
    const auto high = static_cast<std::uint16_t>(low + 1);
    // Above the largest finite value the next power of two stands where infinity is.
    const double next =
        high == infinity ? 2 * format.value_of(infinity - 1) - format.value_of(infinity - 2) : format.value_of(high);
    const double middle = (format.value_of(low) + next) / 2;
    const std::uint16_t even = low % 2 == 0 ? low : high;
    ASSERT_EQ(format.encode(middle), even) << low;
    ASSERT_EQ(format.encode(-middle), even | 0x8000) << low;
    ASSERT_EQ(format.encode(std::nextafter(middle, 0.0)), low) << low;
    ASSERT_EQ(format.encode(std::nextafter(middle, INFINITY)), high) << low;
  }
}

TEST_P(Float16, OverflowIsInfinityAndTinyIsSignedZero) {
  const Format& format = GetParam();
  for (const double huge : {1e300, std::numeric_limits<double>::max(), static_cast<double>(INFINITY)}) {
    EXPECT_EQ(format.value_of(format.encode(huge)), INFINITY);
    EXPECT_EQ(format.value_of(format.encode(-huge)), -INFINITY);
  }
  for (const double tiny : {0.0, 1e-300, std::numeric_limits<double>::denorm_min()}) {
    EXPECT_EQ(format.encode(tiny), 0);
    EXPECT_EQ(format.encode(-tiny), 0x8000);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Float16,
                         ::testing::Values(Format{"f16", 5, encode_f16, decode_f16},
                                           Format{"bf16", 8, encode_bf16, decode_bf16}),
                         [](const auto& test) { return test.param.name; });

TEST(Float16, KnownValues) {
  EXPECT_EQ(encode_f16(1.0), 0x3c00);
  EXPECT_EQ(encode_f16(65504.0), 0x7bff);
  EXPECT_EQ(encode_f16(0x1p-24), 0x0001);
  EXPECT_EQ(encode_bf16(1.0), 0x3f80);
  EXPECT_EQ(encode_bf16(-2.5), 0xc020);
}

}  // namespace
}  // namespace scoremod
