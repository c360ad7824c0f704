#include "analysis/finite_mask.hpp"

#include <gtest/gtest.h>

namespace scoremod::analysis {
namespace {

TEST(FiniteMask, IsALargeNegativeChoiceOfTheValue) {
  EXPECT_EQ(finite_mask(Program::parse("value = select(kv_idx <= q_idx, score, -1e9)")), -1e9f);
  EXPECT_EQ(finite_mask(Program::parse("value = select(kv_idx > q_idx, -32768.0, score)")), -32768.0f);
  EXPECT_EQ(finite_mask(Program::parse("value = score + select(kv_idx <= q_idx, 0.0, -3e38)")), -3e38f);
}

TEST(FiniteMask, IsNoOtherChoice) {
  for (const char* text :
       {"value = select(kv_idx <= q_idx, score, -inf)", "value = select(kv_idx <= q_idx, score, -32767.0)",
        "value = select(kv_idx <= q_idx, score, 1e9)", "value = score * -1e9", "value = score\nkeep = kv_idx <= q_idx",
        "value = score + f32(select(kv_idx <= q_idx, 0, -100000))"}) {
    EXPECT_EQ(finite_mask(Program::parse(text)), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace scoremod::analysis
