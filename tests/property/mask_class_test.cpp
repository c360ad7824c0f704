// Normalisation and classification of random programs keep their meaning.
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "passes/normalize_mask.hpp"
#include "support/mask_check.hpp"
#include "support/mask_data.hpp"
#include "support/random_mask.hpp"

namespace scoremod::test {
namespace {

using masks::MaskClass;
using masks::MaskContext;
using masks::MaskKind;

/// Equal, or both NaN: which NaN it is has no meaning.
bool same(float x, float y) { return x == y || (std::isnan(x) && std::isnan(y)); }

float modified_score(const Program& program, const MaskData& data, const Element4& at, float score) {
  const auto values = data.evaluate(at, score);
  const bool keep = program.keep() == kNoNode || values[program.keep()].b;
  return keep ? values[program.value()].f : -std::numeric_limits<float>::infinity();
}

TEST(MaskClass, SplitsOfRandomMasksAreExact) {
  std::array<int, 7> kinds{};
  for (std::uint64_t seed = 0; seed < 2500; ++seed) {
    std::mt19937_64 random(seed);
    const Program program = random_mask(random, static_cast<int>(seed % 4));
    MaskContext context;
    context.seq_q = 7;
    context.seq_kv = 7 + static_cast<std::int64_t>(seed % 5) - 2;
    if (seed % 3 == 0) context.index_limit = 4096;
    for (const Program& form : {program, passes::normalize_mask(program)}) {
      const MaskClass mask = masks::classify_mask(form, context);
      ++kinds[static_cast<std::size_t>(mask.kind)];
      ASSERT_EQ(check_split(form, mask, context, seed), "") << "seed " << seed;
    }
  }
  // Soundness alone would be met by calling everything general.
  for (const MaskKind kind : {MaskKind::kFull, MaskKind::kEmpty, MaskKind::kBand, MaskKind::kPadding}) {
    EXPECT_GT(kinds[static_cast<std::size_t>(kind)], 20) << masks::to_string(kind);
  }
}

TEST(MaskClass, NormalisationKeepsTheModifiedScore) {
  using Limits = std::numeric_limits<float>;
  int hoisted = 0;
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    std::mt19937_64 random(seed);
    const Program program = random_masked_value(random, static_cast<int>(1 + seed % 4));
    const Program normal = passes::normalize_mask(program);
    hoisted += program.keep() == kNoNode && normal.keep() != kNoNode ? 1 : 0;
    ASSERT_EQ(passes::normalize_mask(normal), normal) << "seed " << seed << "\n" << program.to_string();
    const MaskData data(program, seed);
    const MaskData normal_data(normal, seed);
    for (const float score : {0.75f, -3.0f, Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN()}) {
      for (int i = 0; i < 24; ++i) {
        const Element4 at{static_cast<std::int32_t>(random() % 2), static_cast<std::int32_t>(random() % 2),
                          static_cast<std::int32_t>(random() % 9), static_cast<std::int32_t>(random() % 9)};
        const float expected = modified_score(program, data, at, score);
        const float found = modified_score(normal, normal_data, at, score);
        ASSERT_TRUE(same(expected, found))
            << "seed " << seed << ", score " << score << ", q_idx " << at[2] << ", kv_idx " << at[3] << ": expected "
            << expected << ", found " << found << "\n"
            << program.to_string() << "becomes\n"
            << normal.to_string();
      }
    }
  }
  EXPECT_GT(hoisted, 200);
}

TEST(MaskClass, ACheckedSplitThatIsWrongIsFound) {
  const Program program = Program::parse("value = score\nkeep = q_idx >= kv_idx & q_idx - kv_idx < 4");
  const MaskContext context;
  const MaskClass right = masks::classify_mask(program, context);
  ASSERT_EQ(check_split(program, right, context, 0), "");
  MaskClass wide = right;
  ++*wide.band->right;
  EXPECT_NE(check_split(program, wide, context, 0), "");
  MaskClass narrow = right;
  --*narrow.band->left;
  EXPECT_NE(check_split(program, narrow, context, 0), "");
  MaskClass moved = right;
  moved.band->anchor = masks::BandAnchor::kBottomRight;
  MaskContext ragged = context;
  ragged.seq_kv = 3;
  EXPECT_NE(check_split(program, moved, ragged, 0), "");

  const Program padded = Program::parse("operand length: i32 [b]\nvalue = score\nkeep = kv_idx < length");
  MaskClass off_by_one = masks::classify_mask(padded, context);
  ASSERT_EQ(check_split(padded, off_by_one, context, 0), "");
  ++off_by_one.terms.at(0).bound.offset;
  EXPECT_NE(check_split(padded, off_by_one, context, 0), "");
  MaskClass dropped = masks::classify_mask(padded, context);
  dropped.terms.clear();
  EXPECT_NE(check_split(padded, dropped, context, 0), "");
}

}  // namespace
}  // namespace scoremod::test
