// A table of the ways to spell a mask, each with the class it must be found to have. Every row is also held against
// brute force, so that neither the class nor the expectation can be wrong.
#include "masks/classify_mask.hpp"

#include <gtest/gtest.h>

#include "scoremod/dsl.hpp"
#include "scoremod/zoo.hpp"

#include "passes/normalize_mask.hpp"
#include "support/mask_check.hpp"

namespace scoremod::masks {
namespace {

/// Operands that any row may use.
constexpr const char* kDeclarations =
    "operand length: i32 [b]\n"
    "operand q_length: i32 [b]\n"
    "operand prefix: i32 [b]\n"
    "operand window: i32 [h]\n"
    "operand limit: i32 [q_idx]\n"
    "operand q_doc: i32 [b, q_idx]\n"
    "operand kv_doc: i32 [b, kv_idx]\n"
    "operand q_part: f32 [b, q_idx]\n"
    "operand kv_part: f32 [b, kv_idx]\n"
    "operand pad: bool [b, kv_idx]\n"
    "table doc: i32 rank 2\n"
    "table lengths: i32 rank 1\n";

struct Spelling {
  const char* keep;
  const char* expected;
};

constexpr Spelling kSpellings[] = {
    // Causal.
    {"q_idx >= kv_idx", "band: kv_idx - q_idx <= 0"},
    {"kv_idx <= q_idx", "band: kv_idx - q_idx <= 0"},
    {"q_idx - kv_idx >= 0", "band: kv_idx - q_idx <= 0"},
    {"kv_idx - q_idx <= 0", "band: kv_idx - q_idx <= 0"},
    {"0 <= q_idx - kv_idx", "band: kv_idx - q_idx <= 0"},
    {"!(kv_idx > q_idx)", "band: kv_idx - q_idx <= 0"},
    {"!(q_idx < kv_idx)", "band: kv_idx - q_idx <= 0"},
    {"!!(q_idx >= kv_idx)", "band: kv_idx - q_idx <= 0"},
    {"q_idx > kv_idx | q_idx == kv_idx", "band: kv_idx - q_idx <= 0"},
    {"q_idx - kv_idx > -1", "band: kv_idx - q_idx <= 0"},
    {"kv_idx < q_idx + 1", "band: kv_idx - q_idx <= 0"},
    {"2 * q_idx >= 2 * kv_idx", "band: kv_idx - q_idx <= 0"},
    {"2 * (q_idx - kv_idx) + 1 > 0", "band: kv_idx - q_idx <= 0"},
    {"-q_idx <= -kv_idx", "band: kv_idx - q_idx <= 0"},
    {"min(q_idx, kv_idx) == kv_idx", "band: kv_idx - q_idx <= 0"},
    {"max(q_idx, kv_idx) == q_idx", "band: kv_idx - q_idx <= 0"},
    {"max(q_idx, kv_idx) - q_idx == 0", "band: kv_idx - q_idx <= 0"},
    {"max(kv_idx - q_idx, 0) == 0", "band: kv_idx - q_idx <= 0"},
    {"sign(q_idx - kv_idx) != -1", "band: kv_idx - q_idx <= 0"},
    {"abs(q_idx - kv_idx) == q_idx - kv_idx", "band: kv_idx - q_idx <= 0"},
    {"select(q_idx >= kv_idx, true, false)", "band: kv_idx - q_idx <= 0"},
    {"select(kv_idx > q_idx, 0, 1) == 1", "band: kv_idx - q_idx <= 0"},
    {"bool(i32(q_idx >= kv_idx))", "band: kv_idx - q_idx <= 0"},
    {"i32(kv_idx > q_idx) < 1", "band: kv_idx - q_idx <= 0"},
    {"(kv_idx > q_idx) ^ true", "band: kv_idx - q_idx <= 0"},
    {"(q_idx >= kv_idx) == true", "band: kv_idx - q_idx <= 0"},
    {"(q_idx < kv_idx) != true", "band: kv_idx - q_idx <= 0"},
    {"q_idx >= kv_idx & kv_idx <= q_idx", "band: kv_idx - q_idx <= 0"},
    {"q_idx >= kv_idx & kv_idx < q_idx + 7", "band: kv_idx - q_idx <= 0"},
    {"q_idx + h >= kv_idx + h", "band: kv_idx - q_idx <= 0"},
    // Strict and shifted.
    {"q_idx > kv_idx", "band: kv_idx - q_idx <= -1"},
    {"!(kv_idx >= q_idx)", "band: kv_idx - q_idx <= -1"},
    {"kv_idx + 1 <= q_idx", "band: kv_idx - q_idx <= -1"},
    {"q_idx >= kv_idx & q_idx != kv_idx", "band: kv_idx - q_idx <= -1"},
    {"(q_idx >= kv_idx) ^ (q_idx == kv_idx)", "band: kv_idx - q_idx <= -1"},
    {"q_idx + 512 >= kv_idx", "band: kv_idx - q_idx <= 512"},
    {"q_idx >= kv_idx - 512", "band: kv_idx - q_idx <= 512"},
    {"kv_idx >= q_idx", "band: 0 <= kv_idx - q_idx"},
    {"kv_idx > q_idx", "band: 1 <= kv_idx - q_idx"},
    {"q_idx == kv_idx", "band: 0 <= kv_idx - q_idx <= 0"},
    // Windows.
    {"abs(q_idx - kv_idx) <= 4", "band: -4 <= kv_idx - q_idx <= 4"},
    {"abs(kv_idx - q_idx) < 5", "band: -4 <= kv_idx - q_idx <= 4"},
    {"!(abs(q_idx - kv_idx) > 4)", "band: -4 <= kv_idx - q_idx <= 4"},
    {"max(q_idx - kv_idx, kv_idx - q_idx) <= 4", "band: -4 <= kv_idx - q_idx <= 4"},
    {"max(q_idx, kv_idx) - min(q_idx, kv_idx) <= 4", "band: -4 <= kv_idx - q_idx <= 4"},
    {"q_idx - kv_idx <= 4 & kv_idx - q_idx <= 4", "band: -4 <= kv_idx - q_idx <= 4"},
    {"q_idx - 4 <= kv_idx & kv_idx <= q_idx + 4", "band: -4 <= kv_idx - q_idx <= 4"},
    {"!(q_idx - kv_idx > 4 | kv_idx - q_idx > 4)", "band: -4 <= kv_idx - q_idx <= 4"},
    {"min(q_idx - kv_idx, 4) == q_idx - kv_idx & q_idx + 4 >= kv_idx", "band: -4 <= kv_idx - q_idx <= 4"},
    {"q_idx >= kv_idx & q_idx - kv_idx < 4", "band: -3 <= kv_idx - q_idx <= 0"},
    {"q_idx >= kv_idx & abs(q_idx - kv_idx) < 4", "band: -3 <= kv_idx - q_idx <= 0"},
    {"select(q_idx >= kv_idx, q_idx - kv_idx < 4, false)", "band: -3 <= kv_idx - q_idx <= 0"},
    {"!(kv_idx > q_idx) & !(kv_idx <= q_idx - 4)", "band: -3 <= kv_idx - q_idx <= 0"},
    {"!(select(kv_idx > q_idx, true, q_idx - kv_idx >= 4))", "band: -3 <= kv_idx - q_idx <= 0"},
    {"q_idx - kv_idx < 4 & q_idx - kv_idx < 9 & kv_idx <= q_idx", "band: -3 <= kv_idx - q_idx <= 0"},
    {"(q_idx >= kv_idx & q_idx - kv_idx < 2) | (q_idx - kv_idx >= 2 & q_idx - kv_idx < 4)",
     "band: -3 <= kv_idx - q_idx <= 0"},
    // Nothing and analysis::everything.
    {"true", "full"},
    {"false", "empty"},
    {"q_idx >= 0", "full"},
    {"kv_idx > -1 & h + 1 > 0", "full"},
    {"q_idx >= kv_idx | q_idx < kv_idx", "full"},
    {"q_idx > kv_idx & kv_idx > q_idx", "empty"},
    {"q_idx - kv_idx > 4 & q_idx - kv_idx < 4", "empty"},
    {"q_idx >= kv_idx & q_idx - kv_idx <= -3", "empty"},
    {"pad & !pad", "empty"},
    {"kv_idx < length & kv_idx >= length", "empty"},
    {"q_idx + 1 == kv_idx & q_idx > kv_idx", "empty"},
    // Prefix.
    {"max(q_idx, 4) >= kv_idx", "prefix: kv_idx < 5 or kv_idx <= q_idx"},
    {"kv_idx < 5 | kv_idx <= q_idx", "prefix: kv_idx < 5 or kv_idx <= q_idx"},
    {"q_idx >= kv_idx | 5 > kv_idx", "prefix: kv_idx < 5 or kv_idx <= q_idx"},
    {"!(kv_idx >= 5 & kv_idx > q_idx)", "prefix: kv_idx < 5 or kv_idx <= q_idx"},
    {"select(kv_idx < 5, true, q_idx >= kv_idx)", "prefix: kv_idx < 5 or kv_idx <= q_idx"},
    {"select(q_idx < 5, kv_idx < 5, kv_idx <= q_idx)", "prefix: kv_idx < 5 or kv_idx <= q_idx"},
    {"(q_idx < 5 & kv_idx < 5) | q_idx >= kv_idx", "prefix: kv_idx < 5 or kv_idx <= q_idx"},
    {"kv_idx <= select(q_idx > 4, q_idx, 4)", "prefix: kv_idx < 5 or kv_idx <= q_idx"},
    {"kv_idx < prefix | q_idx >= kv_idx", "prefix: kv_idx < prefix or kv_idx <= q_idx"},
    {"max(q_idx, prefix) >= kv_idx", "prefix: kv_idx < prefix + 1 or kv_idx <= q_idx"},
    {"kv_idx < lengths[b] | q_idx >= kv_idx", "prefix: kv_idx < lengths[b] or kv_idx <= q_idx"},
    {"(kv_idx < 5 | kv_idx <= q_idx) & q_idx - kv_idx < 8",
     "prefix: -7 <= kv_idx - q_idx; kv_idx < 5 or kv_idx <= q_idx"},
    {"kv_idx < 0 | kv_idx <= q_idx", "band: kv_idx - q_idx <= 0"},
    // Padding.
    {"kv_idx < length", "padding: kv_idx < length"},
    {"length > kv_idx", "padding: kv_idx < length"},
    {"!(kv_idx >= length)", "padding: kv_idx < length"},
    {"kv_idx + 1 <= length", "padding: kv_idx < length"},
    {"kv_idx <= length", "padding: kv_idx < length + 1"},
    {"kv_idx + 3 <= length", "padding: kv_idx < length - 2"},
    {"kv_idx < lengths[b]", "padding: kv_idx < lengths[b]"},
    {"kv_idx < 100", "padding: kv_idx < 100"},
    {"kv_idx >= length", "padding: kv_idx >= length"},
    {"q_idx < length & kv_idx < length", "padding: q_idx < length; kv_idx < length"},
    {"max(q_idx, kv_idx) < length", "padding: q_idx < length; kv_idx < length"},
    {"!(q_idx >= length | kv_idx >= length)", "padding: q_idx < length; kv_idx < length"},
    {"kv_idx < length & kv_idx <= length", "padding: kv_idx < length"},
    {"q_idx < q_length & kv_idx < length & kv_idx <= q_idx",
     "padding: kv_idx - q_idx <= 0; q_idx < q_length; kv_idx < length"},
    {"select(kv_idx < length, q_idx >= kv_idx, false)", "padding: kv_idx - q_idx <= 0; kv_idx < length"},
    // Documents.
    {"q_doc == kv_doc", "documents: q_doc == kv_doc"},
    {"kv_doc == q_doc", "documents: q_doc == kv_doc"},
    {"!(q_doc != kv_doc)", "documents: q_doc == kv_doc"},
    {"!(q_doc < kv_doc | q_doc > kv_doc)", "general: q_doc >= kv_doc; q_doc <= kv_doc"},
    {"i32(q_doc == kv_doc) == 1", "documents: q_doc == kv_doc"},
    {"doc[b, q_idx] == doc[b, kv_idx]", "documents: doc[b, q_idx] == doc[b, kv_idx]"},
    {"q_part == kv_part", "documents: q_part == kv_part"},
    {"q_idx // 4 == kv_idx // 4", "documents: q_idx // 4 == kv_idx // 4"},
    {"q_doc == kv_doc & q_idx >= kv_idx", "documents: kv_idx - q_idx <= 0; q_doc == kv_doc"},
    {"q_doc == kv_doc & abs(q_idx - kv_idx) <= 4", "documents: -4 <= kv_idx - q_idx <= 4; q_doc == kv_doc"},
    {"select(q_doc == kv_doc, q_idx >= kv_idx, false)", "documents: kv_idx - q_idx <= 0; q_doc == kv_doc"},
    // A band that keeps every pair of valid indices is none.
    {"kv_idx <= length & length <= q_idx + 1073741823", "padding: kv_idx < length + 1; q_idx >= length - 1073741823"},
    {"q_idx <= length & length <= kv_idx + 1073741823", "padding: q_idx < length + 1; kv_idx >= length - 1073741823"},
    // A number made of the score is no bound and no id.
    {"kv_idx < i32(score)", "general: kv_idx < i32(score)"},
    {"q_idx + i32(score) == kv_doc", "general: q_idx + i32(score) == kv_doc"},
    {"q_doc == kv_idx + i32(score)", "general: q_doc == kv_idx + i32(score)"},
    // A mask without a class of its own keeps the band that follows from it.
    {"pad", "general: pad"},
    {"(q_idx - kv_idx) % 2 == 0", "general: (q_idx - kv_idx) % 2 == 0"},
    {"abs(q_idx - kv_idx) <= 4 & (q_idx - kv_idx) % 2 == 0", "general: -4 <= kv_idx - q_idx <= 4; %0 % 2 == 0"},
    {"q_idx >= kv_idx & (abs(q_idx - kv_idx) <= 2 | kv_idx < 3)",
     "general: kv_idx - q_idx <= 0; abs(q_idx - kv_idx) <= 2 | kv_idx < 3"},
    {"q_idx - kv_idx < window & q_idx >= kv_idx", "general: kv_idx - q_idx <= 0; q_idx - kv_idx < window"},
    {"kv_idx < limit", "general: kv_idx < limit"},
    {"abs(q_idx - kv_idx) >= 2", "general: abs(q_idx - kv_idx) >= 2"},
    {"abs(q_idx - kv_idx) <= 4 & q_idx != kv_idx", "general: -4 <= kv_idx - q_idx <= 4; q_idx != kv_idx"},
    {"kv_idx < length & q_doc == kv_doc", "general: q_doc == kv_doc; kv_idx < length"},
    {"sign(2 * q_idx - kv_idx) == 1", "general: sign(2 * q_idx - kv_idx) == 1"},
    {"select(pad, 1.0, kv_part) > 0.0", "general: select(pad, 1.0, kv_part) > 0.0"},
    {"select(pad, kv_part, 1.0) > 0.0", "general: select(pad, kv_part, 1.0) > 0.0"},
    {"select(pad, q_idx - kv_idx == 1, q_idx - kv_idx == 3)",
     "general: -3 <= kv_idx - q_idx <= -1; select(pad, %0 == 1, %0 == 3)"},
    // A sum that wraps for valid indices is not the plain comparison.
    {"q_idx + 2147483647 >= kv_idx", "general: q_idx + 2147483647 >= kv_idx"},
    {"q_idx * 4 >= kv_idx * 4", "general: q_idx * 4 >= kv_idx * 4"},
    {"abs(2 * (q_idx - kv_idx) - 3) <= 3", "general: abs(2 * (q_idx - kv_idx) - 3) <= 3"},
    // f32 rounds from 2^24 on, and indices may lie there.
    {"f32(q_idx) >= f32(kv_idx)", "general: f32(q_idx) >= f32(kv_idx)"},
};

void PrintTo(const Spelling& spelling, std::ostream* out) { *out << spelling.keep; }

class ClassifyMask : public testing::TestWithParam<Spelling> {};

Program program_of(const char* keep) {
  return Program::parse(std::string(kDeclarations) + "value = score\nkeep = " + keep);
}

TEST_P(ClassifyMask, FindsTheClassAndAnExactSplit) {
  const Program program = program_of(GetParam().keep);
  const MaskContext context;
  const Program normal = passes::normalize_mask(program);
  const MaskClass mask = classify_mask(normal, context);
  EXPECT_EQ(describe(mask, normal), GetParam().expected) << normal.to_string();
  EXPECT_EQ(test::check_split(normal, mask, context, 1), "");
  EXPECT_EQ(test::check_split(program, classify_mask(program, context), context, 2), "");
}

INSTANTIATE_TEST_SUITE_P(Table, ClassifyMask, testing::ValuesIn(kSpellings));

TEST(ClassifyMask, BelowTwoToThe24ComparisonsInF32AreExact) {
  MaskContext context;
  context.index_limit = std::int64_t{1} << 24;
  const Spelling spellings[] = {
      {"f32(q_idx) >= f32(kv_idx)", "band: kv_idx - q_idx <= 0"},
      {"f32(q_idx) - f32(kv_idx) >= 0.0", "band: kv_idx - q_idx <= 0"},
      {"f32(q_idx - kv_idx) >= 0.0", "band: kv_idx - q_idx <= 0"},
      {"abs(f32(q_idx) - f32(kv_idx)) <= 4.0", "band: -4 <= kv_idx - q_idx <= 4"},
      {"!(f32(kv_idx) > f32(q_idx))", "band: kv_idx - q_idx <= 0"},
      {"f32(i32(q_idx >= kv_idx)) > 0.0", "band: kv_idx - q_idx <= 0"},
      {"bool(f32(q_idx >= kv_idx))", "band: kv_idx - q_idx <= 0"},
      {"abs(2 * (q_idx - kv_idx) - 3) <= 3", "band: -3 <= kv_idx - q_idx <= 0"},
      {"max(f32(q_idx), 4.0) >= f32(kv_idx)", "prefix: kv_idx < 5 or kv_idx <= q_idx"},
  };
  for (const Spelling& spelling : spellings) {
    const Program normal = passes::normalize_mask(program_of(spelling.keep));
    const MaskClass mask = classify_mask(normal, context);
    EXPECT_EQ(describe(mask, normal), spelling.expected) << spelling.keep;
    EXPECT_EQ(test::check_split(normal, mask, context, 1), "") << spelling.keep;
  }
}

TEST(ClassifyMask, SumsOfManyOrLargeAddendsAreNotFollowed) {
  MaskContext context;
  context.index_limit = 12;
  const Spelling spellings[] = {
      {"q_idx * 100000000 >= kv_idx * 100000000", "band: kv_idx - q_idx <= 0"},
      {"q_idx * 150000000 > q_idx * -150000000", "general: q_idx * 150000000 > q_idx * -150000000"},
      {"q_idx * 150000000 * 2 >= kv_idx", "general: q_idx * 150000000 * 2 >= kv_idx"},
      {"q_idx * 300000000 >= kv_idx", "general: q_idx * 300000000 >= kv_idx"},
      {"q_idx + kv_idx + b + h >= length", "general: q_idx + kv_idx + b + h >= length"},
  };
  for (const Spelling& spelling : spellings) {
    const Program program = program_of(spelling.keep);
    const MaskClass mask = classify_mask(program, context);
    EXPECT_EQ(describe(mask, program), spelling.expected);
    EXPECT_EQ(test::check_split(program, mask, context, 1), "") << spelling.keep;
  }
}

TEST(ClassifyMask, ReadsCastsThatNoPassHasDropped) {
  const Program program = program_of("bool(q_idx >= kv_idx)");
  const MaskClass mask = classify_mask(program, MaskContext());
  EXPECT_EQ(describe(mask, program), "band: kv_idx - q_idx <= 0");
  EXPECT_EQ(test::check_split(program, mask, MaskContext(), 1), "");
}

TEST(ClassifyMask, BandsOfTermsDecideAMaskThatIsTooLargeToProve) {
  std::string tautologies, others;
  for (int i = 0; i < 30; ++i) {
    const std::string n = std::to_string(i), next = std::to_string(i + 1);
    tautologies += std::string(i == 0 ? "" : " & ") + "(q_idx - kv_idx >= " + n + " | q_idx - kv_idx < " + next + ")";
    others += " & kv_idx != " + std::to_string(3 * i);
  }
  const std::pair<std::string, const char*> rows[] = {
      {"q_idx - kv_idx > 4 & q_idx - kv_idx < 4" + others, "empty"},
      {"!(q_idx + 1073741823 >= length | length > kv_idx)" + others, "empty"},
      {"!(kv_idx + 1073741823 >= length | length > q_idx)" + others, "empty"},
      {tautologies, "full"},
  };
  for (const auto& [keep, expected] : rows) {
    const Program program = program_of(keep.c_str());
    const MaskClass mask = classify_mask(program, MaskContext());
    EXPECT_EQ(describe(mask, program), expected) << keep;
    EXPECT_EQ(test::check_split(program, mask, MaskContext(), 1), "") << keep;
  }
}

TEST(ClassifyMask, NamesTheBottomRightDiagonalWhereTheSizesSayIt) {
  MaskContext context;
  context.seq_q = 100;
  context.seq_kv = 612;
  const Program shifted = program_of("q_idx + 512 >= kv_idx & q_idx + 512 - kv_idx < 8");
  const MaskClass mask = classify_mask(shifted, context);
  EXPECT_EQ(describe(mask, shifted), "band: -7 <= kv_idx - q_idx - (seq_kv - seq_q) <= 0");
  EXPECT_EQ(test::check_split(shifted, mask, context, 1), "");
  EXPECT_EQ(top_left(*mask.band, context.seq_q, context.seq_kv), (Band{-505, 512, BandAnchor::kTopLeft}));

  const Program causal = program_of("q_idx >= kv_idx");
  EXPECT_EQ(classify_mask(causal, context).band->anchor, BandAnchor::kTopLeft);

  const Program anti = program_of("kv_idx - 512 >= q_idx");
  EXPECT_EQ(describe(classify_mask(anti, context), anti), "band: 0 <= kv_idx - q_idx - (seq_kv - seq_q)");
}

TEST(ClassifyMask, AMaskOfManyTermsEndsInGeneralTermsAndNotInLongWork) {
  // Each term alone is hard, and there are many: the allowance runs out, and unproven terms stay terms.
  std::string keep = "q_idx >= kv_idx";
  for (int i = 0; i < 60; ++i) {
    keep += " & (kv_idx < " + std::to_string(3 * i) + " | q_idx < " + std::to_string(5 * i) + " | q_idx - kv_idx > " +
            std::to_string(7 * i) + ")";
  }
  const Program program = passes::normalize_mask(program_of(keep.c_str()));
  const MaskContext context;
  const MaskClass mask = classify_mask(program, context);
  EXPECT_EQ(test::check_split(program, mask, context, 1), "");
}

/// Steps of the proofs about a mask of `count` independent terms.
std::int64_t work_of(const char* op, const char* before, const char* after, int count) {
  std::string keep;
  for (int i = 0; i < count; ++i) keep += (i == 0 ? "" : op) + (before + std::to_string(3 * i)) + after;
  const Program program = passes::normalize_mask(program_of(keep.c_str()));
  std::int64_t work = 0;
  EXPECT_GE(classify_mask(program, MaskContext(), &work).terms.size(), 1u);
  EXPECT_GT(work, 0);
  return work;
}

TEST(ClassifyMask, WorkGrowsNoFasterThanTheMask) {
  struct {
    const char *op, *before, *after;
  } const masks[] = {{" | ", "kv_idx == ", ""},
                     {" & ", "kv_idx != ", ""},
                     {" | ", "kv_idx - 2 * q_idx == ", ""},
                     {" & ", "doc[b, q_idx] + kv_idx != ", " - length"},
                     {" | ", "(q_idx < ", " & pad)"}};
  for (const auto& mask : masks) {
    SCOPED_TRACE(mask.before);
    const std::int64_t small = work_of(mask.op, mask.before, mask.after, 200);
    // Eight times as many terms; a proof that had to look at all of them would make it 64.
    EXPECT_LE(work_of(mask.op, mask.before, mask.after, 1600), 10 * small);
  }
}

TEST(ClassifyMask, KnowsTheReadyMadeMasks) {
  const std::pair<MaskMod, const char*> rows[] = {
      {zoo::causal(), "band: kv_idx - q_idx <= 0"},
      {zoo::causal_bottom_right(100, 612), "band: kv_idx - q_idx - (seq_kv - seq_q) <= 0"},
      {zoo::sliding_window(4), "band: -4 <= kv_idx - q_idx <= 4"},
      {zoo::causal_sliding_window(4), "band: -3 <= kv_idx - q_idx <= 0"},
      {zoo::prefix_lm(5), "prefix: kv_idx < 5 or kv_idx <= q_idx"},
      {zoo::prefix_lm_per_batch(), "prefix: kv_idx < prefix_lengths or kv_idx <= q_idx"},
      {zoo::documents(), "documents: query_documents == key_documents"},
      {zoo::padding(), "padding: kv_idx < lengths"},
      {zoo::dilated_window(4, 2), "general: -8 <= kv_idx - q_idx <= 8; %0 % 2 == 0"},
  };
  MaskContext context;
  context.seq_q = 100;
  context.seq_kv = 612;
  for (const auto& [mask_mod, expected] : rows) {
    const Program normal = passes::normalize_mask(trace(mask_mod));
    const MaskClass mask = classify_mask(normal, context);
    EXPECT_EQ(describe(mask, normal), expected) << normal.to_string();
    EXPECT_EQ(test::check_split(normal, mask, context, 3), "");
  }
}

TEST(ClassifyMask, AProgramWithoutKeepIsFull) { EXPECT_EQ(classify_mask(Program(), MaskContext()), MaskClass()); }

}  // namespace
}  // namespace scoremod::masks
