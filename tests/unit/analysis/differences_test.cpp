#include "analysis/differences.hpp"

#include <gtest/gtest.h>

namespace scoremod::analysis {
namespace {

/// Whether the value of a program depends on differences alone; it must not be the score's.
bool value_is_of_differences(const char* text) {
  const Program program = Program::parse(text);
  return of_differences(program)[program.value()];
}

TEST(OfDifferences, FindsWhatFollowsFromTheDifferenceAlone) {
  for (const char* text : {
           "value = f32(kv_idx - q_idx)",
           "value = f32(q_idx - kv_idx + 7)",
           "value = f32(q_idx + (3 - kv_idx))",
           "value = f32(q_idx * 5 + -5 * kv_idx + h)",
           "value = exp(0.1 * f32(abs(kv_idx - q_idx)))",
           "value = select(kv_idx - q_idx < 0, f32(h), 2.0)",
           "value = select(kv_idx > q_idx, f32(h), 2.0)",
           "value = select(kv_idx + 9 <= q_idx, 1.0, select(q_idx - h == kv_idx, 3.0, 2.0))",
           "table x: f32 rank 1\nvalue = x[max(min(kv_idx - q_idx, 128), -128) + 128]",
           "table x: f32 rank 2\noperand y: f32 [b, h]\nvalue = x[(q_idx - kv_idx) // 3, h] * y",
           "operand y: f32 [h]\nvalue = y",
       })
    EXPECT_TRUE(value_is_of_differences(text)) << text;
}

TEST(OfDifferences, LeavesOutWhatDoesNot) {
  for (const char* text : {
           "value = score",
           "value = f32(kv_idx)",
           "value = f32(kv_idx + q_idx)",
           "value = f32(kv_idx) - f32(q_idx)",  // rounds each
           "value = f32(kv_idx * 2 - q_idx)",
           "value = f32(kv_idx // 64 - q_idx // 64)",
           "value = f32(kv_idx * h - q_idx * h)",  // is one, but nobody looks for it
           "operand y: f32 [kv_idx]\nvalue = y",
           "operand y: f32 [q_idx, kv_idx]\nvalue = y * f32(q_idx - kv_idx)",
           "table x: f32 rank 1\nvalue = x[q_idx]",
           "value = select(kv_idx * 2 > q_idx, 1.0, 2.0)",
           "value = select(kv_idx * 2 > q_idx * 2, 1.0, 2.0)",
           "value = select(kv_idx > 9, 1.0, 2.0)",
           "value = select(kv_idx > -1 * q_idx, 1.0, 2.0)",
           "value = select(q_idx < kv_idx * 2, 1.0, 2.0)",
           "value = select(q_idx * 2 < kv_idx, 1.0, 2.0)",
           "value = select(kv_idx < q_idx * 2, 1.0, 2.0)",
           "value = select(q_idx < kv_idx // 2, 1.0, 2.0)",
           "value = select(kv_idx // 2 > q_idx, 1.0, 2.0)",
           "value = score + f32(kv_idx - q_idx)",
       })
    EXPECT_FALSE(value_is_of_differences(text)) << text;
}

}  // namespace
}  // namespace scoremod::analysis
