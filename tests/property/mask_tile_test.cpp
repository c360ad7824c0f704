// Whatever TileMaskAnalyzer says of a tile holds for each of its elements.
#include <gtest/gtest.h>

#include "support/mask_data.hpp"
#include "support/random_mask.hpp"

namespace scoremod::test {
namespace {

using analysis::IndexBox;
using masks::TileMask;
using masks::TileMaskAnalyzer;

struct Truth {
  bool any = false;
  bool all = true;
};

Truth brute_force(const MaskData& data, const IndexBox& tile) {
  Truth truth;
  for (std::int64_t q = tile[2].first; q <= tile[2].last; ++q) {
    for (std::int64_t kv = tile[3].first; kv <= tile[3].last; ++kv) {
      const bool keep = data.keep({static_cast<std::int32_t>(tile[0].first), static_cast<std::int32_t>(tile[1].first),
                                   static_cast<std::int32_t>(q), static_cast<std::int32_t>(kv)});
      truth.any = truth.any || keep;
      truth.all = truth.all && keep;
    }
  }
  return truth;
}

/// Boxes at the origin, beyond 2^24 (where f32 rounds) and near the largest valid index (where i32 sums wrap).
IndexBox random_tile(std::mt19937_64& random) {
  const std::array<std::int64_t, 5> bases{0, 0, 0, (std::int64_t{1} << 24) - 3, 2147483647 - 20};
  const auto range = [&] {
    const std::int64_t first = bases[random() % bases.size()] + static_cast<std::int64_t>(random() % 12);
    return analysis::IndexRange{first, first + static_cast<std::int64_t>(random() % 6)};
  };
  const auto point = [&] {
    const auto at = static_cast<std::int64_t>(random() % 3);
    return analysis::IndexRange{at, at};
  };
  return {point(), point(), range(), range()};
}

TEST(MaskTile, AnswersHoldForEveryElementOfRandomPrograms) {
  int decided = 0;
  int decidable = 0;
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    std::mt19937_64 random(seed);
    const Program program = random_mask(random, static_cast<int>(seed % 5));
    const MaskData data(program, seed);
    const TileMaskAnalyzer analyzer(program);
    TileMaskAnalyzer::Scratch scratch = analyzer.make_scratch();
    for (int i = 0; i < 8; ++i) {
      const IndexBox tile = random_tile(random);
      const TileMask answer = analyzer.analyze(tile, MaskDataRanges(data, tile), scratch);
      const Truth truth = brute_force(data, tile);
      decidable += !truth.any || truth.all ? 1 : 0;
      decided += answer != TileMask::kMixed ? 1 : 0;
      if (answer == TileMask::kEmpty) {
        ASSERT_FALSE(truth.any) << "seed " << seed << "\n" << program.to_string();
      } else if (answer == TileMask::kFull) {
        ASSERT_TRUE(truth.all) << "seed " << seed << "\n" << program.to_string();
      }
    }
  }
  // Soundness alone would be met by never deciding.
  EXPECT_GT(decided * 2, decidable);
}

TEST(MaskTile, AnswersHoldWithoutAnythingKnownOfTheOperands) {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    std::mt19937_64 random(seed);
    const Program program = random_mask(random, 3);
    const MaskData data(program, seed);
    const TileMaskAnalyzer analyzer(program);
    TileMaskAnalyzer::Scratch scratch = analyzer.make_scratch();
    const IndexBox tile = random_tile(random);
    const TileMask answer = analyzer.analyze(tile, masks::OperandRanges(), scratch);
    const Truth truth = brute_force(data, tile);
    if (answer == TileMask::kEmpty) {
      ASSERT_FALSE(truth.any) << "seed " << seed << "\n" << program.to_string();
    } else if (answer == TileMask::kFull) {
      ASSERT_TRUE(truth.all) << "seed " << seed << "\n" << program.to_string();
    }
  }
}

}  // namespace
}  // namespace scoremod::test
