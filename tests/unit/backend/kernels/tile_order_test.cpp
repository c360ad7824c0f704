// In which order blocks have the tiles of heads, on a host, thread by thread: with several heads together every kernel
// still makes each tile once, and is right by the float64 oracle.

#include <algorithm>

#include <gtest/gtest.h>

#include "backend/kernels/hopper_shape.hpp"
#include "support/attention_kernels_cases.hpp"
#include "support/check_report.hpp"
#include "support/emulated_attention.hpp"

namespace scoremod::backend::kernels {
namespace {

/// Not a divisor of the heads, so that the last ones are fewer.
constexpr int kTogether = 3;

TileShape together(TileShape shape) {
  shape.heads_together = kTogether;
  return shape;
}
TileShape portable(const AttentionProblem& problem, Direction direction) {
  return together(tile_shape(problem, direction));
}
TileShape hopper(const AttentionProblem& problem, Direction direction) {
  return together(hopper_shapes(problem, direction).front());
}
/// Persistent blocks forward, dq beside dk and dv backward.
TileShape hopper_variants(const AttentionProblem& problem, Direction direction) {
  constexpr std::int64_t kMultiprocessors = 5;
  return together(direction == Direction::kForward ? persistent_hopper_shape(problem, kMultiprocessors)
                                                   : hopper_fused_shape(problem));
}

/// Several tiles of each of eight heads of queries over four of keys.
checking::CheckCase many_heads() {
  std::vector<checking::CheckCase> cases = test::attention_kernels_cases(true);
  checking::CheckCase test = std::move(*std::ranges::find(cases, "plain f16", &checking::CheckCase::name));
  AttentionProblem& problem = test.problem;
  problem.batch = 2;
  problem.heads_q = 4;
  problem.heads_kv = 2;
  problem.seq_q = 300;
  problem.seq_kv = 280;
  problem.program = Program::parse("value = score\nkeep = kv_idx <= q_idx");
  return test;
}

class TilesOfHeadsTogether : public ::testing::TestWithParam<test::ShapeOf*> {};

TEST_P(TilesOfHeadsTogether, AreRight) {
  const checking::CheckCase test = many_heads();
  const ProblemInputs inputs = random_inputs(test.problem);
  test::expect_right(test::check_emulated(test, inputs, *GetParam()));
  // Were two blocks' tiles the same, others would be left out.
  const test::EmulatedLaunches::Fault fault{"within % together, within / together", "0, within / together"};
  EXPECT_FALSE(test::check_emulated(test, inputs, *GetParam(), {fault, fault}).passed());
}
INSTANTIATE_TEST_SUITE_P(Kernels, TilesOfHeadsTogether, ::testing::Values(portable, hopper, hopper_variants));

TEST(HeadsInCache, AreWhatFits) {
  AttentionProblem problem;
  problem.batch = 4;
  problem.heads_q = 16;
  problem.heads_kv = 4;
  problem.seq_q = problem.seq_kv = 4096;
  problem.dim_qk = problem.dim_v = 128;
  problem.dtype = DType::kBF16;
  // 2 MiB of keys and values for four heads of queries; four of these have 4 MiB each.
  EXPECT_EQ(heads_in_cache(problem, Direction::kForward), 15 * 4);
  EXPECT_EQ(heads_in_cache(problem, Direction::kBackward), 1);
  problem.seq_q = problem.seq_kv = 128;
  EXPECT_EQ(heads_in_cache(problem, Direction::kForward), 64);
  EXPECT_EQ(heads_in_cache(problem, Direction::kBackward), 16);
  problem.seq_kv = 1 << 20;
  EXPECT_EQ(heads_in_cache(problem, Direction::kForward), 4);
}

}  // namespace
}  // namespace scoremod::backend::kernels
