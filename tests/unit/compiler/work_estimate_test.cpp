#include "compiler/work_estimate.hpp"

#include <gtest/gtest.h>

namespace scoremod::compiler {
namespace {

TEST(WorkEstimate, PairsOfABandAreThoseThatCountingFinds) {
  for (std::int64_t seq_q = 1; seq_q <= 6; ++seq_q) {
    for (std::int64_t seq_kv = 1; seq_kv <= 6; ++seq_kv) {
      for (std::int64_t left = -8; left <= 8; ++left) {
        for (std::int64_t right = -8; right <= 8; ++right) {
          std::int64_t top_left = 0, bottom_right = 0;
          for (std::int64_t q = 0; q < seq_q; ++q) {
            for (std::int64_t kv = 0; kv < seq_kv; ++kv) {
              const std::int64_t d = kv - q, e = d - (seq_kv - seq_q);
              top_left += -left <= d && d <= right ? 1 : 0;
              bottom_right += -left <= e && e <= right ? 1 : 0;
            }
          }
          const auto pairs = [&](masks::BandAnchor anchor) {
            return pairs_in_band(masks::Band{left, right, anchor}, seq_q, seq_kv);
          };
          ASSERT_EQ(pairs(masks::BandAnchor::kTopLeft), top_left)
              << seq_q << " " << seq_kv << " " << left << " " << right;
          ASSERT_EQ(pairs(masks::BandAnchor::kBottomRight), bottom_right)
              << seq_q << " " << seq_kv << " " << left << " " << right;
        }
      }
    }
  }
}

TEST(WorkEstimate, OpenEndsAndHugeBoundsDoNotWrap) {
  constexpr std::int64_t kLong = std::int64_t{1} << 30;
  using masks::Band;
  EXPECT_EQ(pairs_in_band(std::nullopt, kLong, kLong), kLong * kLong);
  EXPECT_EQ(pairs_in_band(Band{}, kLong, kLong), kLong * kLong);
  EXPECT_EQ(pairs_in_band(Band{std::nullopt, 0}, kLong, kLong), kLong * (kLong + 1) / 2);
  EXPECT_EQ(pairs_in_band(Band{std::int64_t{1} << 40, std::int64_t{1} << 40}, kLong, kLong), kLong * kLong);
  EXPECT_EQ(pairs_in_band(Band{-(std::int64_t{1} << 40), std::nullopt}, kLong, kLong), 0);
}

AttentionProblem small_problem() {
  AttentionProblem problem;
  problem.batch = 2;
  problem.heads_q = 4;
  problem.heads_kv = 2;
  problem.seq_q = 16;
  problem.seq_kv = 24;
  problem.dim_qk = 8;
  problem.dim_v = 4;
  problem.dtype = DType::kF16;
  problem.program = Program::parse("operand x: f32 [h]\noperand n: i32 [b]\nvalue = score * x\nkeep = kv_idx < n");
  problem.operands = {{"x", DType::kF32, {4}, {}}, {"n", DType::kI32, {2}, {}}};
  return problem;
}

TEST(WorkEstimate, CountsEachTensorOnce) {
  AttentionProblem problem = small_problem();
  constexpr double kQ = 2 * 4 * 16 * 8 * 2, kK = 2 * 2 * 24 * 8 * 2, kV = 2 * 2 * 24 * 4 * 2, kO = 2 * 4 * 16 * 4 * 2;
  constexpr double kLse = 2 * 4 * 16 * 4, kX = 4 * 4, kN = 2 * 4;
  EXPECT_EQ(estimate_work(problem).forward_bytes, kQ + kK + kV + kX + kN + kO);
  EXPECT_EQ(estimate_work(problem).backward_bytes, 0);
  problem.backward = true;
  EXPECT_EQ(estimate_work(problem).forward_bytes, kQ + kK + kV + kX + kN + kO + kLse);
  EXPECT_EQ(estimate_work(problem).backward_bytes, 2 * (kQ + kK + kV + kO) + kLse + 2 * kX + kN);
  problem.operands[0].gradient = false;
  EXPECT_EQ(estimate_work(problem).backward_bytes, 2 * (kQ + kK + kV + kO) + kLse + kX + kN);
}

TEST(WorkEstimate, OfDataThatIsNotKnownIsABound) {
  const WorkEstimate work = estimate_work(small_problem());
  EXPECT_FALSE(work.exact);
  EXPECT_EQ(work.pairs, 2.0 * 4 * 16 * 24);
  EXPECT_EQ(work.forward_flops, work.pairs * (2 * 8 + 2 * 4));
  EXPECT_EQ(work.backward_flops, 0);
}

}  // namespace
}  // namespace scoremod::compiler
