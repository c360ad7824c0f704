#include "base/float8.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/element.hpp"
#include "support/test_seed.hpp"

namespace scoremod {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Format {
  std::string name;
  DType dtype;
  int exponent_bits;
  double largest;
  int first_special;  ///< the first positive code that is no number
  std::function<float(std::uint8_t)> decode;
  std::function<std::uint8_t(double)> encode;
};

void PrintTo(const Format& format, std::ostream* out) { *out << format.name; }

std::vector<Format> formats() {
  return {{"e4m3", DType::kE4M3, 4, 448, 0x7f, decode_e4m3, encode_e4m3},
          {"e5m2", DType::kE5M2, 5, 57344, 0x7c, decode_e5m2, encode_e5m2}};
}

/// A positive code that is a number, from the definition of the format.
double defined(const Format& format, int code) {
  const int mantissa_bits = 7 - format.exponent_bits, bias = (1 << (format.exponent_bits - 1)) - 1;
  const int exponent = code >> mantissa_bits, mantissa = code & ((1 << mantissa_bits) - 1);
  const double fraction = std::ldexp(mantissa, -mantissa_bits);
  return exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
}

class Float8 : public testing::TestWithParam<Format> {};

TEST_P(Float8, ReadsEveryCode) {
  const Format& format = GetParam();
  for (int code = 0; code < 0x80; ++code) {
    const float positive = format.decode(static_cast<std::uint8_t>(code));
    const float negative = format.decode(static_cast<std::uint8_t>(code | 0x80));
    EXPECT_TRUE(std::signbit(negative) && !std::signbit(positive)) << code;
    if (code < format.first_special) {
      EXPECT_EQ(positive, defined(format, code)) << code;
      EXPECT_EQ(negative, -defined(format, code)) << code;
    } else if (format.dtype == DType::kE5M2 && code == format.first_special) {
      EXPECT_EQ(positive, std::numeric_limits<float>::infinity());
      EXPECT_EQ(negative, -std::numeric_limits<float>::infinity());
    } else {
      EXPECT_TRUE(std::isnan(positive) && std::isnan(negative)) << code;
    }
  }
}

TEST_P(Float8, WritesEveryNumberBack) {
  const Format& format = GetParam();
  for (int code = 0; code < format.first_special; ++code) {
    EXPECT_EQ(format.encode(defined(format, code)), code);
    EXPECT_EQ(format.encode(-defined(format, code)), code | 0x80);
  }
}

/// Between each two neighbours: just below the middle, the middle itself, which goes to the even code, and just above.
TEST_P(Float8, RoundsToNearestEven) {
  const Format& format = GetParam();
  for (int code = 0; code + 1 < format.first_special; ++code) {
    const double low = defined(format, code), high = defined(format, code + 1), middle = (low + high) / 2;
    for (const double sign : {1.0, -1.0}) {
      const int bit = sign < 0 ? 0x80 : 0;
      EXPECT_EQ(format.encode(sign * std::nextafter(middle, 0)), bit | code);
      EXPECT_EQ(format.encode(sign * middle), bit | (code % 2 == 0 ? code : code + 1));
      EXPECT_EQ(format.encode(sign * std::nextafter(middle, kInfinity)), bit | (code + 1));
    }
  }
}

TEST_P(Float8, FindsTheNearestOfRandomNumbers) {
  const Format& format = GetParam();
  std::mt19937_64 random(test::test_seed());
  for (int i = 0; i < 20000; ++i) {
    const double number =
        std::ldexp(std::uniform_real_distribution(-1.0, 1.0)(random), std::uniform_int_distribution(-20, 17)(random));
    double nearest = kInfinity;
    for (int code = 0; code < format.first_special; ++code)
      nearest = std::min(nearest, std::abs(std::abs(number) - defined(format, code)));
    const double found = format.decode(format.encode(number));
    EXPECT_EQ(std::abs(found - number), nearest) << number;
  }
}

TEST_P(Float8, SaturatesAndKeepsNan) {
  const Format& format = GetParam();
  const int largest = format.first_special - 1;
  for (const double beyond : {format.largest, std::nextafter(format.largest, kInfinity), 1.04 * format.largest,
                              2 * format.largest, 1e300, kInfinity}) {
    EXPECT_EQ(format.encode(beyond), largest) << beyond;
    EXPECT_EQ(format.encode(-beyond), 0x80 | largest) << beyond;
  }
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(std::isnan(format.decode(format.encode(nan))));
  EXPECT_TRUE(std::isnan(format.decode(format.encode(-nan))));
  EXPECT_EQ(format.encode(0.0), 0);
  EXPECT_EQ(format.encode(-0.0), 0x80);
  EXPECT_EQ(format.encode(-std::numeric_limits<double>::denorm_min()), 0x80);
  EXPECT_EQ(saturate(format.dtype, 1e9), format.largest);
  EXPECT_EQ(saturate(format.dtype, -1e9), -format.largest);
  EXPECT_EQ(saturate(format.dtype, 3.0), 3.0);
  EXPECT_TRUE(std::isnan(saturate(format.dtype, nan)));
}

TEST_P(Float8, IsExactInSixteenBits) {
  for (int code = 0; code < 0x100; ++code) {
    const float number = GetParam().decode(static_cast<std::uint8_t>(code));
    if (std::isnan(number)) continue;
    EXPECT_EQ(round_to(DType::kF16, number), number);
    EXPECT_EQ(round_to(DType::kBF16, number), number);
  }
}

TEST_P(Float8, IsReadAndWrittenAsAnElement) {
  std::uint8_t code = 0;
  write_element(GetParam().dtype, &code, -3.3);
  EXPECT_EQ(code, GetParam().encode(-3.3));
  EXPECT_EQ(read_element(GetParam().dtype, &code), GetParam().decode(code));
  EXPECT_EQ(round_to(GetParam().dtype, -3.3f), GetParam().decode(code));
}

INSTANTIATE_TEST_SUITE_P(Formats, Float8, testing::ValuesIn(formats()));

}  // namespace
}  // namespace scoremod
