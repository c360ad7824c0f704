#include "verification/trial_case.hpp"

#include <gtest/gtest.h>

#include "compiler/pipeline.hpp"
#include "support/problem_for.hpp"
#include "verification/trial.hpp"
#include "verification/trial_problem.hpp"

namespace scoremod::verification {
namespace {

struct Sizes {
  std::int64_t batch = 2, heads_q = 4, heads_kv = 2, seq_q = 600, seq_kv = 600;
};

compiler::CompiledProblem problem_of(const char* program, const Sizes& sizes = {}, bool index_offsets = false) {
  AttentionProblem problem = test::small_problem();
  problem.batch = sizes.batch;
  problem.heads_q = sizes.heads_q;
  problem.heads_kv = sizes.heads_kv;
  problem.seq_q = sizes.seq_q;
  problem.seq_kv = sizes.seq_kv;
  problem.dim_qk = problem.dim_v = 16;
  problem.stats = true;
  problem.index_offsets = index_offsets;
  return compiler::compile(test::problem_for(Program::parse(program), problem));
}

void expect_sizes(const TrialCase& found, std::int64_t batches, std::int64_t heads, const char* program) {
  EXPECT_EQ(found.problem.problem.batch, batches) << program;
  EXPECT_EQ(found.problem.problem.heads_q, heads) << program;
}

TEST(TrialCase, IsTheUsualCallWhereThatShowsAll) {
  for (const char* program : {"value = score", "value = score * f32(h + 1)\nkeep = kv_idx <= q_idx",
                              "value = select(kv_idx < q_idx, score, score * 0.5)"}) {
    const TrialCase found = trial_case(problem_of(program, {.batch = 8, .heads_q = 64, .heads_kv = 32}));
    EXPECT_TRUE(found.reach.complete) << program;
    expect_sizes(found, 2, 4, program);
    EXPECT_EQ(found.offsets, IndexOffsets{}) << program;
  }
  EXPECT_EQ(trial_case(problem_of("value = score", {}, true)).offsets, (IndexOffsets{1, 2, 5, 3}));
}

TEST(TrialCase, HasTheHeadsAndBatchesThatConditionsTell) {
  const Sizes many{.batch = 8, .heads_q = 32, .heads_kv = 8};
  for (const char* program : {"value = score\nkeep = h >= 16", "value = select(h < 20, score, score * 2.0)",
                              "value = score\nkeep = h >= 16 & q_idx >= kv_idx | h < 16 & q_idx - kv_idx < 64"}) {
    const TrialCase found = trial_case(problem_of(program, many));
    EXPECT_TRUE(found.reach.complete) << program;
    expect_sizes(found, 2, 32, program);
  }
  for (const std::int64_t heads_kv : {1, 2, 32}) {  // one KV head is a structure of its own
    const TrialCase found =
        trial_case(problem_of("value = score\nkeep = h >= 20", {.heads_q = 32, .heads_kv = heads_kv}));
    EXPECT_TRUE(found.reach.complete) << heads_kv;
    EXPECT_EQ(found.problem.problem.heads_kv, heads_kv);
  }
  const char* program = "value = select(b == 5, score, -inf)";
  expect_sizes(trial_case(problem_of(program, many)), 8, 4, program);
}

TEST(TrialCase, StaysTheUsualOneWhereNothingShowsMore) {
  // No index decides the first condition, and no head meets the second.
  for (const char* program :
       {"value = select(score > 1000.0, score * 2.0, score)", "value = select(h >= 900, -score, score)"}) {
    const TrialCase found = trial_case(problem_of(program, {.batch = 2, .heads_q = 32, .heads_kv = 8}));
    expect_sizes(found, 2, 4, program);
  }
}

/// Found on a device (a random suite's problem 464 of seed 431915099): a backward was wrong, and its trial had no key.
TEST(TrialCase, HasOffsetsWhereRowsKeepKeys) {
  const compiler::CompiledProblem problem =
      problem_of("value = select(1 // (h - q_idx) - kv_idx <= -798, score * 0.5, -inf)",
                 {.batch = 2, .heads_q = 4, .heads_kv = 2, .seq_q = 40, .seq_kv = 50}, true);
  const TrialCase found = trial_case(problem);
  EXPECT_GT(found.offsets.key, 700);
  EXPECT_TRUE(found.reach.kept > 0);
  Trial trial(problem);
  EXPECT_TRUE(trial.keeps_keys());
}

TEST(TrialCase, SaysWhereNoCallKeepsAKey) {
  const compiler::CompiledProblem problem =
      problem_of("value = select((q_idx * 31 + kv_idx * 17) % 100003 == 99999, score, -inf)");
  Trial trial(problem);
  EXPECT_FALSE(trial.keeps_keys());
}

}  // namespace
}  // namespace scoremod::verification
