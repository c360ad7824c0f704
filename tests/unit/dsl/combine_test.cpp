#include <gtest/gtest.h>

#include "scoremod/dsl.hpp"
#include "scoremod/error.hpp"

namespace scoremod {
namespace {

const auto causal = [](Index i) { return i.q >= i.kv; };
const auto near = [](Index i) { return i.q - i.kv < 4; };
const auto first = [](Index i) { return i.kv == 0; };

Program masked(const char* keep) { return Program::parse(std::string("value = score; keep = ") + keep); }

TEST(Combine, AndOrNot) {
  EXPECT_EQ(trace(and_masks(causal, near)), masked("q_idx >= kv_idx & q_idx - kv_idx < 4"));
  EXPECT_EQ(trace(or_masks(causal, near, first)), masked("q_idx >= kv_idx | q_idx - kv_idx < 4 | kv_idx == 0"));
  EXPECT_EQ(trace(not_mask(causal)), masked("!(q_idx >= kv_idx)"));
}

TEST(Combine, OperatorsMeanTheSameAsFunctions) {
  const MaskMod wrapped = causal;
  EXPECT_EQ(trace(wrapped && near), trace(and_masks(causal, near)));
  EXPECT_EQ(trace(near || wrapped), trace(or_masks(near, causal)));
  EXPECT_EQ(trace(!wrapped), trace(not_mask(causal)));
  EXPECT_EQ(trace(wrapped && (!wrapped || first)), masked("q_idx >= kv_idx & (!(q_idx >= kv_idx) | kv_idx == 0)"));
}

TEST(Combine, AnEmptyMaskKeepsEverything) {
  EXPECT_EQ(trace(ScoreMod{}, MaskMod{}), Program());
  EXPECT_EQ(trace(and_masks({MaskMod{}, MaskMod{}})), Program());
  EXPECT_EQ(trace(and_masks(std::vector<MaskMod>{})), Program());
  EXPECT_EQ(trace(and_masks(MaskMod{}, causal)), trace(causal));
  EXPECT_EQ(trace(or_masks(MaskMod{}, causal)), Program());
  EXPECT_EQ(trace(not_mask(MaskMod{})), masked("!true"));
  EXPECT_THROW(or_masks(std::vector<MaskMod>{}), Error);
}

TEST(Combine, ScoreModsApplyInOrder) {
  const auto twice = [](Score s, Index) { return s * 2; };
  const auto plus_h = [](Score s, Index i) { return s + f32(i.h); };
  EXPECT_EQ(trace(compose(twice, plus_h)), Program::parse("value = score * 2.0 + f32(h)"));
  EXPECT_EQ(trace(compose(plus_h, twice)), Program::parse("value = (score + f32(h)) * 2.0"));
  EXPECT_EQ(trace(compose(ScoreMod{}, twice)), trace(twice));
  EXPECT_EQ(trace(compose(std::vector<ScoreMod>{})), Program());
}

TEST(Combine, OperandsOfAllPartsAreDeclaredOnce) {
  const Operand<Float> scale("scale", {Axis::kHead});
  const auto scaled = [scale](Score s, Index) { return s * scale; };
  EXPECT_EQ(trace(compose(scaled, scaled), [scale](Index) { return scale > 0; }),
            Program::parse("operand scale: f32 [h]\nvalue = score * scale * scale\nkeep = scale > 0.0"));
}

}  // namespace
}  // namespace scoremod
