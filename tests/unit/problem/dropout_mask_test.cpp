#include "problem/dropout_mask.hpp"

#include <cmath>
#include <functional>
#include <vector>

#include <gtest/gtest.h>

#include "support/test_seed.hpp"

namespace scoremod::problem {
namespace {

constexpr std::int64_t kBatches = 3, kHeads = 4, kQueries = 60, kKeys = 70;
constexpr double kElements = double(kBatches * kHeads * kQueries * kKeys);
/// Standard deviations beyond which chance is no explanation: once in more than a hundred million tests.
constexpr double kSigmas = 6;

using Mask = std::function<bool(std::int64_t, std::int64_t, std::int64_t, std::int64_t)>;

/// The part of the elements for which both keep or both drop.
double agreement(const Mask& x, const Mask& y) {
  double count = 0;
  for (std::int64_t b = 0; b < kBatches; ++b) {
    for (std::int64_t h = 0; h < kHeads; ++h) {
      for (std::int64_t q = 0; q < kQueries; ++q) {
        for (std::int64_t kv = 0; kv < kKeys; ++kv) count += x(b, h, q, kv) == y(b, h, q, kv) ? 1 : 0;
      }
    }
  }
  return count / kElements;
}

Mask mask_of(float probability, std::uint64_t seed, std::uint64_t offset) {
  const DropoutMask mask(probability, seed, offset);
  return [mask](std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t kv) { return mask.keeps(b, h, q, kv); };
}

void expect_part(double found, double expected, const char* what) {
  EXPECT_NEAR(found, expected, kSigmas * std::sqrt(expected * (1 - expected) / kElements)) << what;
}

TEST(DropoutMask, DropsAtItsRate) {
  const Mask keeps = [](auto...) { return true; };
  for (const float probability : {0.1f, 0.5f, 0.875f}) {
    expect_part(agreement(keeps, mask_of(probability, test::test_seed(), 1)), 1 - double(probability), "rate");
  }
  EXPECT_EQ(agreement(keeps, mask_of(0, test::test_seed(), 1)), 1);
}

TEST(DropoutMask, IsIndependentOfItsNeighboursAndOfOtherCalls) {
  const std::uint64_t seed = test::test_seed();
  for (const float probability : {0.2f, 0.5f}) {
    const double p = probability, expected = p * p + (1 - p) * (1 - p);
    const Mask mask = mask_of(probability, seed, 9);
    const auto moved = [&](int db, int dh, int dq, int dkv) {
      return [&mask, db, dh, dq, dkv](std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t kv) {
        return mask(b + db, h + dh, q + dq, kv + dkv);
      };
    };
    for (int distance : {1, 2, 3, 4, 8, 128}) {
      expect_part(agreement(mask, moved(0, 0, 0, distance)), expected, "keys");
      expect_part(agreement(mask, moved(0, 0, distance, 0)), expected, "queries");
      expect_part(agreement(mask, moved(0, distance, 0, 0)), expected, "heads");
      expect_part(agreement(mask, moved(distance, 0, 0, 0)), expected, "batches");
    }
    expect_part(agreement(moved(0, 0, 1, 0), moved(0, 0, 0, 1)), expected, "diagonals");
    for (const std::uint64_t bit :
         {std::uint64_t{1}, std::uint64_t{1} << 31, std::uint64_t{1} << 32, std::uint64_t{1} << 63}) {
      expect_part(agreement(mask, mask_of(probability, seed, 9 ^ bit)), expected, "offsets");
      expect_part(agreement(mask, mask_of(probability, seed ^ bit, 9)), expected, "seeds");
    }
  }
}

/// A higher probability drops every weight that a lower one drops, and more.
TEST(DropoutMask, GrowsWithTheProbability) {
  const DropoutMask few(0.2f, 3, 4), many(0.6f, 3, 4);
  for (std::int64_t kv = 0; kv < 500; ++kv) EXPECT_LE(many.keeps(0, 1, 2, kv), few.keeps(0, 1, 2, kv));
}

TEST(DropoutMask, DropsRunsOfAnyAlignment) {
  const DropoutMask mask(0.5f, 11, 0);
  for (std::int64_t first : {0, 1, 2, 3, 7, 1000}) {
    for (std::size_t count : {1, 2, 3, 4, 5, 64}) {
      std::vector<float> weights(count, 2.0f);
      mask.drop(1, 2, 3, first, count, weights.data());
      for (std::size_t i = 0; i < count; ++i)
        EXPECT_EQ(weights[i], mask.keeps(1, 2, 3, first + static_cast<std::int64_t>(i)) ? 2.0f : 0.0f);
    }
  }
}

/// Programs that compute the mask themselves rely on docs/reference/problem.md.
TEST(DropoutMask, IsWhatTheDocumentSays) {
  constexpr std::uint64_t kSeed = 0x0123'4567'89ab'cdef, kOffset = 0xfedc'ba98'7654'3210;
  const auto key = philox({0x7654'3210, 0xfedc'ba98, 0, 0}, {0x89ab'cdef, 0x0123'4567});
  const DropoutMask mask(0.25f, kSeed, kOffset);
  for (std::uint32_t kv = 0; kv < 64; ++kv) {
    const auto words = philox({kv / 4, 7, 5, 2}, {key[0], key[1]});
    EXPECT_EQ(mask.keeps(2, 5, 7, kv), words[kv % 4] >= 0x4000'0000u);
  }
  EXPECT_EQ(mask.factor(), 4.0 / 3.0);
}

}  // namespace
}  // namespace scoremod::problem
