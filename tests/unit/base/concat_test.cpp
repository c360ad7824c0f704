#include "base/concat.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <limits>
#include <random>
#include <sstream>

#include <gtest/gtest.h>

#include "support/test_seed.hpp"

namespace scoremod {
namespace {

template <class... Parts>
std::string streamed(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

enum Plain : std::uint8_t { kSecond = 1 };

TEST(Concat, WritesWhatAStreamWrites) {
  const std::string text = "text";
  const auto check = [](const auto&... parts) { EXPECT_EQ(concat(parts...), streamed(parts...)); };
  check("literal", text, std::string_view(text), 'c', std::uint8_t{65}, std::int8_t{66});
  check(true, false, 1, -2L, 3u, 4ull, std::int16_t{-5}, kSecond);
  check(std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::uint64_t>::max());
}

TEST(Concat, WritesNumbersWithSixDigits) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double number : {0.0, -0.0, 1.0, 0.1, 1e-5, 123456.0, 1234567.0, 1e100, 5e-324, kInfinity, -kInfinity}) {
    EXPECT_EQ(concat(number), streamed(number));
    EXPECT_EQ(concat(static_cast<float>(number)), streamed(static_cast<float>(number)));
  }
  EXPECT_EQ(concat(std::nan("")), streamed(std::nan("")));
  std::mt19937_64 random(test::test_seed());
  for (int i = 0; i < 2000; ++i) {
    const auto number = std::bit_cast<double>(random());
    EXPECT_EQ(concat(number), streamed(number)) << "SCOREMOD_TEST_SEED=" << test::test_seed();
  }
}

}  // namespace
}  // namespace scoremod
