#include "check/row_sample.hpp"

#include <gtest/gtest.h>

#include "support/problem_for.hpp"

namespace scoremod::checking {
namespace {

CheckCase case_of(const std::string& program) {
  AttentionProblem sizes;
  sizes.batch = 2;
  sizes.heads_q = sizes.heads_kv = 2;
  sizes.seq_q = 30;
  // More than an evaluator's strip.
  sizes.seq_kv = 300;
  CheckCase made;
  made.problem = test::problem_for(Program::parse(program), sizes);
  return made;
}

RowSample sample_of(const std::string& program) { return sample_rows(case_of(program), 20); }

TEST(RowSample, TellsWhatRowsKeep) {
  const RowSample all = sample_of("value = score");
  EXPECT_EQ(all.rows, 20);
  EXPECT_EQ(all.empty, 0);
  EXPECT_EQ(all.partly_kept, 0);
  EXPECT_EQ(sample_of("value = score\nkeep = kv_idx > q_idx + 300").empty, 20);
  EXPECT_EQ(sample_of("value = select(kv_idx == 299, score, -inf)").partly_kept, 20);
  const RowSample some = sample_of("value = score\nkeep = q_idx % 2 == 0");
  EXPECT_GT(some.empty, 0);
  EXPECT_LT(some.empty, 20);
  EXPECT_EQ(some.partly_kept, 0);
}

TEST(RowSample, TellsWhetherWeightsFollowTheScores) {
  EXPECT_EQ(sample_of("value = score").told_by_score, 20);
  EXPECT_EQ(sample_of("value = tanh(score * 0.25) - 250.0").told_by_score, 20);
  // The score is not read, or moves nothing by more than rounding does, or one key has all of the weight.
  EXPECT_EQ(sample_of("value = f32(kv_idx) * 0.01").told_by_score, 0);
  EXPECT_EQ(sample_of("value = score * 0.0001 + f32(kv_idx) * 0.01").told_by_score, 0);
  EXPECT_EQ(sample_of("value = score - f32(kv_idx) * 40.0").told_by_score, 0);
  EXPECT_EQ(sample_of("value = score\nkeep = kv_idx == q_idx").told_by_score, 0);
}

TEST(RowSample, KnowsTheCallsOffsetsLengthsAndOperandsAndTheSink) {
  CheckCase shifted = case_of("value = score\nkeep = kv_idx < 1000");
  EXPECT_EQ(sample_rows(shifted).partly_kept, 0);
  shifted.problem.index_offsets = true;
  shifted.call.offsets.key = 900;
  EXPECT_EQ(sample_rows(shifted).partly_kept, 12);
  shifted.call.offsets.key = 1000;
  EXPECT_EQ(sample_rows(shifted).empty, 12);

  CheckCase with_lengths = case_of("value = score");
  with_lengths.problem.lengths.kv = true;
  with_lengths.fills = {{"lengths_kv", {FillKind::kUniform, 7, 7}}};
  EXPECT_EQ(sample_rows(with_lengths).partly_kept, 12);

  CheckCase by_data = case_of("operand first: i32 [b]\nvalue = score\nkeep = kv_idx >= first");
  by_data.fills = {{"first", {FillKind::kUniform, 300, 300}}};
  EXPECT_EQ(sample_rows(by_data).empty, 12);

  CheckCase low = case_of("value = score - 100.0");
  EXPECT_EQ(sample_rows(low).told_by_score, 12);
  low.problem.sink = Sink::kOffByOne;
  EXPECT_EQ(sample_rows(low).told_by_score, 0);
}

}  // namespace
}  // namespace scoremod::checking
