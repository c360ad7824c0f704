#include "masks/tile_mask_analyzer.hpp"

#include <gtest/gtest.h>

namespace scoremod::masks {
namespace {

/// Operand 0 is known, all else is not.
class OneRange : public OperandRanges {
 public:
  explicit OneRange(analysis::ValueRange range) : range_(range) {}
  analysis::ValueRange broadcast(std::uint32_t operand, Type type) const override {
    return operand == 0 ? range_ : analysis::everything(type);
  }

 private:
  analysis::ValueRange range_;
};

TileMask analyze(const char* text, analysis::IndexRange q, analysis::IndexRange kv,
                 const OperandRanges& ranges = OperandRanges()) {
  const TileMaskAnalyzer analyzer(Program::parse(text));
  TileMaskAnalyzer::Scratch scratch = analyzer.make_scratch();
  return analyzer.analyze({{{0, 0}, {0, 0}, q, kv}}, ranges, scratch);
}

struct Case {
  const char* text;
  analysis::IndexRange q;
  analysis::IndexRange kv;
  TileMask expected;
};

TEST(TileMaskAnalyzer, DecidesWhatGeometryDecides) {
  const TileMask empty = TileMask::kEmpty;
  const TileMask full = TileMask::kFull;
  const TileMask mixed = TileMask::kMixed;
  const Case cases[] = {
      // Causal: the tile below, on and above the diagonal, to the element.
      {"value = score\nkeep = q_idx >= kv_idx", {64, 127}, {0, 64}, full},
      {"value = score\nkeep = q_idx >= kv_idx", {64, 127}, {0, 65}, mixed},
      {"value = score\nkeep = q_idx >= kv_idx", {0, 63}, {63, 127}, mixed},
      {"value = score\nkeep = q_idx >= kv_idx", {0, 63}, {64, 127}, empty},
      {"value = score\nkeep = q_idx - kv_idx >= 0", {0, 63}, {64, 127}, empty},
      {"value = score\nkeep = (q_idx >= kv_idx) == true", {64, 127}, {0, 64}, full},
      {"value = score\nkeep = (q_idx >= kv_idx) == true", {64, 127}, {0, 65}, mixed},
      {"value = score\nkeep = (q_idx >= kv_idx) == true", {0, 63}, {64, 127}, empty},
      // q and kv on both sides: only the difference counts.
      {"value = score\nkeep = q_idx + kv_idx - 5 >= 2 * kv_idx - 5", {64, 127}, {0, 64}, full},
      {"value = score\nkeep = q_idx + kv_idx < q_idx", {0, 63}, {0, 63}, empty},
      // Windows.
      {"value = score\nkeep = abs(q_idx - kv_idx) <= 16", {0, 7}, {0, 16}, full},
      {"value = score\nkeep = abs(q_idx - kv_idx) <= 16", {0, 7}, {24, 30}, empty},
      {"value = score\nkeep = abs(q_idx - kv_idx) <= 16", {0, 7}, {23, 30}, mixed},
      {"value = score\nkeep = (q_idx >= kv_idx) & (q_idx - kv_idx < 4)", {100, 103}, {0, 96}, empty},
      // Prefix.
      {"value = score\nkeep = max(q_idx, 31) >= kv_idx", {0, 7}, {0, 31}, full},
      {"value = score\nkeep = max(q_idx, 31) >= kv_idx", {0, 7}, {32, 63}, empty},
      // In f32: exact below 2^24.
      {"value = score\nkeep = f32(q_idx) >= f32(kv_idx)", {64, 127}, {0, 64}, full},
      {"value = score\nkeep = f32(q_idx) - f32(kv_idx) >= 0.0", {0, 63}, {64, 127}, empty},
      // Remainders within one period, and beyond.
      {"value = score\nkeep = kv_idx % 64 < 8", {0, 0}, {64, 71}, full},
      {"value = score\nkeep = kv_idx % 64 < 8", {0, 0}, {72, 127}, empty},
      {"value = score\nkeep = kv_idx % 64 < 8", {0, 0}, {72, 128}, mixed},
      {"value = score\nkeep = q_idx // 16 == kv_idx // 16", {16, 31}, {16, 31}, full},
      {"value = score\nkeep = q_idx // 16 == kv_idx // 16", {16, 31}, {32, 40}, empty},
      // A sum that may wrap says nothing; the same sum below the limit does.
      {"value = score\nkeep = q_idx + 2147483600 >= kv_idx", {0, 63}, {0, 63}, mixed},
      {"value = score\nkeep = q_idx + 2147483600 >= kv_idx", {0, 47}, {0, 63}, full},
      // The score may be anything.
      {"value = score\nkeep = score > 0.0", {0, 0}, {0, 0}, mixed},
      {"value = score", {0, 0}, {0, 0}, full},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(analyze(c.text, c.q, c.kv), c.expected)
        << c.text << "\nq " << c.q.first << ".." << c.q.last << ", kv " << c.kv.first << ".." << c.kv.last;
  }
}

TEST(TileMaskAnalyzer, UsesTheRangesOfOperands) {
  const char* padding = "operand length: i32 [b]\nvalue = score\nkeep = kv_idx < length";
  EXPECT_EQ(analyze(padding, {0, 63}, {0, 63}, OneRange({64, 64})), TileMask::kFull);
  EXPECT_EQ(analyze(padding, {0, 63}, {0, 63}, OneRange({63, 63})), TileMask::kMixed);
  EXPECT_EQ(analyze(padding, {0, 63}, {64, 127}, OneRange({64, 64})), TileMask::kEmpty);
  EXPECT_EQ(analyze(padding, {0, 63}, {0, 63}), TileMask::kMixed);
  const char* either = "operand id: i32 [b, q_idx]\nvalue = score\nkeep = id == kv_idx | id > 7";
  EXPECT_EQ(analyze(either, {0, 63}, {0, 63}, OneRange({8, 9})), TileMask::kFull);
  EXPECT_EQ(analyze(either, {0, 63}, {6, 63}, OneRange({4, 5})), TileMask::kEmpty);
}

TEST(TileMaskAnalyzer, NanInAnOperandLeavesTheTileMixed) {
  const char* text = "operand x: f32 [kv_idx]\nvalue = score\nkeep = x < 5.0";
  EXPECT_EQ(analyze(text, {0, 0}, {0, 3}, OneRange({0, 4, false})), TileMask::kFull);
  EXPECT_EQ(analyze(text, {0, 0}, {0, 3}, OneRange({0, 4, true})), TileMask::kMixed);
  EXPECT_EQ(analyze(text, {0, 0}, {0, 3}, OneRange({6, 8, true})), TileMask::kEmpty);
}

TEST(TileMaskAnalyzer, IgnoresWhatOnlyTheValueNeeds) {
  const Program program = Program::parse("value = score * 2.0 + tanh(score)\nkeep = q_idx >= kv_idx");
  const TileMaskAnalyzer analyzer(program);
  EXPECT_FALSE(analyzer.keeps_all());
  EXPECT_TRUE(TileMaskAnalyzer(Program()).keeps_all());
}

}  // namespace
}  // namespace scoremod::masks
