#include "verification/trial_problem.hpp"

#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "compiler/pipeline.hpp"
#include "support/large_problem.hpp"
#include "verification/small_constants.hpp"
#include "verification/trial.hpp"

namespace scoremod::verification {
namespace {

using test::large_problem;

constexpr const char* kWindow = R"(value = score * 0.5
keep = q_idx - kv_idx <= 512 & kv_idx <= q_idx)";

TEST(TrialProblem, IsSmallAndKeepsWhatDecidesKernels) {
  const auto problem =
      compiler::compile(large_problem("operand slopes: f32 [h]\ntable lookup: f32 rank 1\n"
                                      "value = score * slopes + lookup[kv_idx]"));
  const AttentionProblem trial = trial_problem(problem).problem;
  EXPECT_NO_THROW(validate(trial));
  EXPECT_EQ(trial.batch, 2);
  EXPECT_EQ(trial.heads_kv, 2);
  EXPECT_EQ(trial.heads_q, 4);
  EXPECT_EQ(trial.seq_q % 128, 0);
  EXPECT_EQ(trial.seq_kv % 128, 0);
  EXPECT_LT(trial.seq_q, trial.seq_kv);
  EXPECT_LE(trial.seq_kv, 512);
  EXPECT_EQ(trial.dim_qk, 192);
  EXPECT_EQ(trial.dim_v, 128);
  EXPECT_EQ(trial.operands[0].shape, (std::vector<std::int64_t>{4}));
  EXPECT_EQ(trial.operands[1].shape, (std::vector<std::int64_t>{64}));
  EXPECT_EQ(trial.effective_scale(), problem.problem.effective_scale());
}

TEST(TrialProblem, IsCalledWithoutOffsetsOfWhatLiesInSequences) {
  AttentionProblem problem = large_problem("value = score");
  problem.index_offsets = true;
  const compiler::CompiledProblem dense = compiler::compile(problem);
  EXPECT_EQ(Trial(dense).parameters().offsets, (IndexOffsets{1, 2, 5, 3}));
  problem.tokens_q = problem.tokens_kv = 8192;
  problem.q.layout = problem.k.layout = problem.v.layout = problem.o.layout = Layout::kTHD;
  const compiler::CompiledProblem ragged = compiler::compile(problem);
  // Calls with others are refused, and backends need not take them.
  EXPECT_EQ(Trial(ragged).parameters().offsets, (IndexOffsets{0, 2, 0, 0}));
}

TEST(TrialProblem, HasTheKeysOfItsOwnBatches) {
  AttentionProblem problem = large_problem("value = score * 2.0");
  problem.dropout = 0.5F;
  problem.dropout_keys = true;
  const AttentionProblem trial = trial_problem(compiler::compile(problem)).problem;
  EXPECT_NO_THROW(validate(trial));
  EXPECT_EQ(trial.operands.back().shape, (std::vector<std::int64_t>{trial.batch, 4}));
  problem.operands.push_back({"dropout_keys", DType::kI32, {problem.batch, 10}, {}});
  const AttentionProblem placed = trial_problem(compiler::compile(problem)).problem;
  EXPECT_NO_THROW(validate(placed));
  EXPECT_EQ(placed.operands.back().shape, (std::vector<std::int64_t>{placed.batch, 10}));
}

TEST(TrialProblem, KeepsPartialTilesSingleRowsAndShortLengths) {
  AttentionProblem problem = large_problem("value = score * 2.0");
  problem.seq_q = 1;
  problem.seq_kv = 4095;
  AttentionProblem trial = trial_problem(compiler::compile(problem)).problem;
  EXPECT_EQ(trial.seq_q, 1);
  EXPECT_NE(trial.seq_kv % 128, 0);
  problem.seq_q = problem.seq_kv = 50;
  trial = trial_problem(compiler::compile(problem)).problem;
  EXPECT_EQ(trial.seq_q, 50);
  EXPECT_EQ(trial.seq_kv, 50);
  problem.seq_q = 8192;
  problem.seq_kv = 4096;
  trial = trial_problem(compiler::compile(problem)).problem;
  EXPECT_GT(trial.seq_q, trial.seq_kv);
}

TEST(TrialProblem, HasSmallerConstantsThatItsLengthsReach) {
  const auto problem = compiler::compile(large_problem(kWindow));
  const compiler::CompiledProblem trial = trial_problem(problem);
  EXPECT_EQ(trial.problem.program.to_string(),
            Program::parse("value = score * 0.5\nkeep = q_idx - kv_idx <= 128 & kv_idx <= q_idx").to_string());
  ASSERT_TRUE(trial.forward.mask.band);
  EXPECT_EQ(trial.forward.mask.band->left, 128);
  EXPECT_EQ(trial.forward.mask.band->right, 0);
  EXPECT_EQ(trial.problem.seq_q, 3 * 128);
  EXPECT_TRUE(same_structure(trial, problem));
}

TEST(TrialProblem, LeavesAProgramWhoseStructureHangsOnItsConstants) {
  // The passes decide whether 300 - 299 becomes 1.
  const auto problem = compiler::compile(large_problem("value = score\nkeep = kv_idx * 300 <= q_idx * 600"));
  const AttentionProblem trial = trial_problem(problem).problem;
  EXPECT_NO_THROW(validate(trial));
  EXPECT_TRUE(same_structure(trial_problem(problem), problem));
}

TEST(TrialProblem, AlignsAMaskAtTheEndOfTheSmallLengths) {
  const auto problem = compiler::compile(large_problem("value = score\nkeep = kv_idx <= q_idx + 4096"));
  ASSERT_TRUE(problem.forward.mask.band);
  EXPECT_EQ(problem.forward.mask.band->anchor, masks::BandAnchor::kBottomRight);
  const compiler::CompiledProblem trial = trial_problem(problem);
  EXPECT_EQ(trial.forward.mask, problem.forward.mask);
  EXPECT_EQ(trial.problem.seq_kv - trial.problem.seq_q, 128);
  EXPECT_EQ(trial.problem.program.to_string(),
            Program::parse("value = score\nkeep = kv_idx <= q_idx + 128").to_string());
}

TEST(TrialProblem, KeepsTheOrderOfItsLengths) {
  AttentionProblem problem = large_problem("value = score * 2.0");
  for (const auto& [seq_q, seq_kv] : std::vector<std::pair<std::int64_t, std::int64_t>>{{4096, 300},
                                                                                        {300, 4096},
                                                                                        {300, 301},
                                                                                        {301, 300},
                                                                                        {4096, 4095},
                                                                                        {4095, 4096},
                                                                                        {100, 99},
                                                                                        {333, 384},
                                                                                        {2, 3},
                                                                                        {3, 2},
                                                                                        {30, 2},
                                                                                        {2, 30},
                                                                                        {1, 2},
                                                                                        {2, 1},
                                                                                        {24, 23}}) {
    problem.seq_q = seq_q;
    problem.seq_kv = seq_kv;
    const AttentionProblem trial = trial_problem(compiler::compile(problem)).problem;
    EXPECT_EQ(trial.seq_q < trial.seq_kv, seq_q < seq_kv) << seq_q << " and " << seq_kv;
    EXPECT_NE(trial.seq_q, trial.seq_kv) << seq_q << " and " << seq_kv;
  }
}

/// A verdict speaks for every length of its structure, so that two rows may not be all that it has seen.
TEST(TrialProblem, OfAShortProblemHasRoomForEveryClassOfRows) {
  AttentionProblem problem = large_problem("value = score * 2.0\nkeep = kv_idx <= q_idx");
  problem.seq_q = problem.seq_kv = 2;
  const auto compiled = compiler::compile(problem);
  const compiler::CompiledProblem trial = trial_problem(compiled);
  EXPECT_EQ(trial.problem.seq_q, 24);
  EXPECT_EQ(trial.problem.seq_kv, 24);
  EXPECT_TRUE(same_structure(trial, compiled));
}

TEST(TrialProblem, PacksStridesInTheirOrderWithWhatDecidesAlignment) {
  AttentionProblem problem = large_problem("value = score * 2.0");
  problem.backward = false;
  problem.q.strides = Strides{32 * 4096 * 256, 256, 32 * 256, 1};
  problem.k.strides = Strides{0, 192, 4 * 192, 1};
  const AttentionProblem trial = trial_problem(compiler::compile(problem)).problem;
  EXPECT_NO_THROW(validate(trial));
  EXPECT_EQ(trial.q.strides->head, 192 + 64);
  EXPECT_EQ(trial.q.strides->sequence, 4 * (192 + 64));
  EXPECT_EQ(trial.k.strides->batch, 0);
  EXPECT_EQ(trial.k.strides->sequence, 2 * 192);
  problem.q.strides = Strides{32 * 4096 * 193, 193, 32 * 193, 1};
  EXPECT_EQ(trial_problem(compiler::compile(problem)).problem.q.strides->head, 193);
}

}  // namespace
}  // namespace scoremod::verification
