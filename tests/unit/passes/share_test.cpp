#include "passes/share.hpp"

#include <string>

#include <gtest/gtest.h>

#include "support/program_equivalence.hpp"

namespace scoremod {
namespace {

constexpr std::uint64_t kSeeds = 400;

struct Case {
  const char* before;
  const char* after;
};

constexpr const char* kOperands =
    "operand x: f32 []\n"
    "operand y: f32 []\n"
    "operand s: bool []\n"
    "operand t: bool []\n";

constexpr Case kCases[] = {
    {"value = (x + y) * (y + x)", "let %0 = x + y\nvalue = %0 * %0\n"},
    {"value = x * y - y * x", "let %0 = x * y\nvalue = %0 - %0\n"},
    {"value = (x - y) * (y - x)", "value = (x - y) * (y - x)\n"},
    {"value = min(x, y) - min(y, x)", "value = min(x, y) - min(y, x)\n"},
    {"value = f32(min(q_idx, kv_idx) - min(kv_idx, q_idx))", "let %0 = min(q_idx, kv_idx)\nvalue = f32(%0 - %0)\n"},
    {"value = 2.0 * x + x * 2.0", "let %0 = x * 2.0\nvalue = %0 + %0\n"},
    {"value = score\nkeep = q_idx >= kv_idx & kv_idx <= q_idx",
     "let %0 = q_idx >= kv_idx\nvalue = score\nkeep = %0 & %0\n"},
    {"value = score\nkeep = x < y ^ y > x", "let %0 = x < y\nvalue = score\nkeep = %0 ^ %0\n"},
    {"value = score\nkeep = (s & t) == (t & s) | 1 < q_idx",
     "let %0 = s & t\nvalue = score\nkeep = q_idx > 1 | %0 == %0\n"},
};

TEST(Share, Table) {
  for (const Case& one : kCases) {
    const Program before = Program::parse(std::string(kOperands) + one.before);
    const Program after = passes::share(before);
    EXPECT_EQ(after.to_string(), kOperands + std::string(one.after)) << one.before;
    EXPECT_EQ(test::first_difference(before, after, kSeeds), "") << one.before;
    EXPECT_EQ(passes::share(after), after) << one.before;
  }
}

TEST(Share, MovesTheRootsOfADerivative) {
  const Program before = Program::parse(
      "table t: f32 rank 1\n"
      "value = score + t[q_idx + kv_idx]\n"
      "d_score = upstream * score + score * upstream\n"
      "accumulate t[kv_idx + q_idx] += upstream\n");
  const Program after = passes::share(before);
  EXPECT_EQ(after.to_string(),
            "table t: f32 rank 1\n"
            "let %0 = q_idx + kv_idx\n"
            "let %1 = score * upstream\n"
            "value = score + t[%0]\n"
            "d_score = %1 + %1\n"
            "accumulate t[%0] += upstream\n");
  EXPECT_EQ(test::first_difference(before, after, kSeeds), "");
}

}  // namespace
}  // namespace scoremod
