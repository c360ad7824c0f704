#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/error.hpp"
#include "scoremod/zoo.hpp"

namespace scoremod {
namespace {

TEST(AlibiSlopes, ArePowersForPowersOfTwo) {
  EXPECT_EQ(zoo::alibi_slopes(1), (std::vector<float>{1.0f / 256}));
  EXPECT_EQ(zoo::alibi_slopes(8), (std::vector<float>{1.0f / 2, 1.0f / 4, 1.0f / 8, 1.0f / 16, 1.0f / 32, 1.0f / 64,
                                                      1.0f / 128, 1.0f / 256}));
}

TEST(AlibiSlopes, FillUpFromTwiceThePowerBelow) {
  const float r = std::sqrt(0.5f);
  const std::vector<float> expected{1.0f / 2,   1.0f / 4,   1.0f / 8, 1.0f / 16, 1.0f / 32, 1.0f / 64,
                                    1.0f / 128, 1.0f / 256, r,        r / 2,     r / 4,     r / 8};
  EXPECT_EQ(zoo::alibi_slopes(12), expected);
  EXPECT_EQ(zoo::alibi_slopes(3), (std::vector<float>{1.0f / 16, 1.0f / 256, 1.0f / 4}));
}

TEST(AlibiSlopes, RefusesNoHeads) {
  EXPECT_THROW(zoo::alibi_slopes(0), Error);
  EXPECT_THROW(zoo::alibi_slopes(-4), Error);
}

/// The published code (_relative_position_bucket), in float32 as it runs there.
int published_bucket(int relative_position, bool bidirectional, int num_buckets, int max_distance) {
  int result = 0;
  int n = -relative_position;
  if (bidirectional) {
    num_buckets /= 2;
    result += n < 0 ? num_buckets : 0;
    n = std::abs(n);
  } else {
    n = std::max(n, 0);
  }
  const int max_exact = num_buckets / 2;
  if (n < max_exact) return result + n;
  const float ratio = std::log(static_cast<float>(n) / static_cast<float>(max_exact)) /
                      static_cast<float>(std::log(static_cast<double>(max_distance) / max_exact));
  return result +
         std::min(max_exact + static_cast<int>(ratio * static_cast<float>(num_buckets - max_exact)), num_buckets - 1);
}

TEST(T5Bucket, AgreesWithThePublishedCodeForItsParameters) {
  for (const bool bidirectional : {true, false}) {
    for (int distance = -300; distance <= 300; ++distance) {
      EXPECT_EQ(zoo::t5_bucket(distance, bidirectional, 32, 128), published_bucket(distance, bidirectional, 32, 128))
          << distance << (bidirectional ? " bidirectional" : " one-directional");
    }
  }
}

TEST(T5Bucket, IsExactAtTheThresholds) {
  // With e = 8, n = 16 and max_distance = 128: d is in bucket 8 + k from d^8 >= 8^(8 - k) * 128^k on. In base 2 that is
  // d >= 2^(3 + k / 2).
  for (int k = 1; k < 8; ++k) {
    int first = 1;
    while (first * first < (1 << (6 + k))) ++first;
    EXPECT_EQ(zoo::t5_bucket(-first, true, 32, 128), 8 + k);
    EXPECT_EQ(zoo::t5_bucket(-first + 1, true, 32, 128), 8 + k - 1);
    EXPECT_EQ(zoo::t5_bucket(first, true, 32, 128), 16 + 8 + k);
  }
}

TEST(T5Bucket, GrowsWithTheDistanceAndStaysInRange) {
  for (const auto& [buckets, furthest] :
       {std::pair{2, 2}, std::pair{7, 9}, std::pair{64, 1000}, std::pair{256, 1 << 24}}) {
    int previous = 0;
    for (int distance = 0; distance < 3000; ++distance) {
      const int bucket = zoo::t5_bucket(-distance, false, buckets, furthest);
      EXPECT_GE(bucket, previous);
      EXPECT_LT(bucket, buckets);
      previous = bucket;
    }
    EXPECT_EQ(zoo::t5_bucket(INT32_MIN, false, buckets, furthest), buckets - 1);
    EXPECT_EQ(zoo::t5_bucket(INT32_MAX, false, buckets, furthest), 0);
  }
}

TEST(T5Bucket, RefusesParametersWithoutMeaning) {
  EXPECT_THROW(zoo::t5_bucket(1, true, 3, 128), Error);
  EXPECT_THROW(zoo::t5_bucket(1, true, 33, 128), Error);
  EXPECT_THROW(zoo::t5_bucket(1, true, 258, 128), Error);
  EXPECT_THROW(zoo::t5_bucket(1, false, 1, 128), Error);
  EXPECT_THROW(zoo::t5_bucket(1, true, 32, 8), Error);
  EXPECT_NO_THROW(zoo::t5_bucket(1, true, 32, 9));
  EXPECT_THROW(zoo::t5_bucket(1, true, 32, (1 << 24) + 1), Error);
}

}  // namespace
}  // namespace scoremod
