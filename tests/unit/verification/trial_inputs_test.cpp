#include "verification/trial_inputs.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "backend/reference/naive_attention.hpp"
#include "base/element.hpp"
#include "compiler/pipeline.hpp"
#include "problem/implied_operands.hpp"
#include "problem/stored_unit.hpp"
#include "problem/strided_tensor.hpp"
#include "support/large_problem.hpp"
#include "support/problem_for.hpp"
#include "verification/trial_problem.hpp"

namespace scoremod::verification {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

AttentionProblem problem_with(const std::string& program, DType dtype = DType::kF32) {
  AttentionProblem problem = test::small_problem();
  problem.seq_q = 40;
  problem.seq_kv = 50;
  problem.dim_qk = problem.dim_v = 16;
  problem.dtype = dtype;
  problem.stats = true;
  return test::problem_for(Program::parse(program), problem, 40);
}

/// The oracle's LSEs of the inputs, in ascending order.
std::vector<double> lse_of(const AttentionProblem& problem) {
  const backend::CallParameters parameters{problem.effective_scale(), {}, nullptr};
  const ProblemInputs inputs = trial_inputs(problem, parameters);
  std::vector<const void*> operands;
  for (const OwnedOperand& operand : inputs.operands) operands.push_back(operand.bytes.data());
  auto lse = backend::reference::forward<double>(compiler::compile(problem),
                                                 {inputs.q.data(), inputs.k.data(), inputs.v.data(), nullptr, operands},
                                                 parameters)
                 .lse;
  std::ranges::sort(lse);
  return lse;
}

/// Rows in per cent.
struct Shares {
  double empty = 0, low = 0, high = 0;
};

Shares shares_of(const AttentionProblem& problem) {
  Shares shares;
  const std::vector<double> lse = lse_of(problem);
  const double one = 100 / static_cast<double>(lse.size());
  for (const double value : lse) {
    EXPECT_FALSE(std::isnan(value));
    if (value == -kInfinity) {
      shares.empty += one;
    } else if (value < -100) {
      shares.low += one;
    } else if (value > 100) {
      shares.high += one;
    }
  }
  return shares;
}

void expect_some(double share, const char* what) {
  EXPECT_GT(share, 0) << what;
  EXPECT_LE(share, 50) << what;
}

TEST(TrialInputs, HaveFarLsesByTheirScores) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const char* program : {"value = score", "value = score * -3.0", "value = score\nkeep = kv_idx <= q_idx"}) {
      const Shares shares = shares_of(problem_with(program, dtype));
      expect_some(shares.low, program);
      expect_some(shares.high, program);
    }
  }
}

TEST(TrialInputs, HaveFarLsesByAnOperandWhereScoresAreBounded) {
  const Shares shares =
      shares_of(problem_with("operand bias: f32 [q_idx, kv_idx]\nvalue = 20.0 * tanh(score / 20.0) + bias"));
  expect_some(shares.low, "low");
  expect_some(shares.high, "high");
}

/// Whoever makes weights from such an LSE makes wrong ones: a trial with 10^9 for an integer refused right kernels.
TEST(TrialInputs, HaveNoLseThatFloat32RoundsByMuch) {
  const std::vector<double> lse =
      lse_of(problem_with("operand x: i32 [h, q_idx]\nvalue = (f32(x) - score + f32(x)) * 0.23", DType::kBF16));
  EXPECT_LT(lse.front(), -100);
  EXPECT_GT(lse.back(), 100);
  EXPECT_GT(lse.front(), -2e4);
  EXPECT_LT(lse.back(), 2e4);
}

TEST(TrialInputs, HaveRowsThatTheDataEmpties) {
  for (const char* program :
       {"operand kept: bool [b, q_idx]\nvalue = score\nkeep = kept",
        "operand kept: bool [b, kv_idx]\nvalue = score\nkeep = kept",
        "operand masked: bool [q_idx, kv_idx]\nvalue = score\nkeep = !masked",
        "operand length: i32 [b]\nvalue = score\nkeep = kv_idx < length",
        "operand q_ids: i32 [b, q_idx]\noperand kv_ids: i32 [b, kv_idx]\nvalue = score\nkeep = q_ids == kv_ids",
        "operand bias: f32 [h, q_idx, kv_idx]\nvalue = score + bias",
        "table bias: f32 rank 1\nvalue = score + bias[q_idx]",
        "table bias: f32 rank 2\nvalue = score + bias[q_idx, kv_idx]"}) {
    expect_some(shares_of(problem_with(program)).empty, program);
  }
}

/// Found on a device: the backward of two rows was wrong if the data emptied one, and its trial saw none empty.
TEST(TrialInputs, OfATwoRowProblemsTrialHaveAnEmptyRow) {
  AttentionProblem problem = problem_with(
      "table row_weight: i32 rank 1\nvalue = score * 0.6 + log(f32(max(row_weight[q_idx % 12], 0)))", DType::kF16);
  problem.batch = problem.heads_q = problem.heads_kv = 1;
  problem.seq_q = 2;
  problem.seq_kv = 128;
  problem.operands[0].shape = {12};
  expect_some(shares_of(trial_problem(compiler::compile(problem)).problem).empty, "rows without a key");
}

/// An offset of 0 behind others would empty a sequence's rows, and be none.
TEST(TrialInputs, LeaveTheOffsetsOfSequencesAlone) {
  AttentionProblem problem = test::large_problem("value = score");
  problem.tokens_q = problem.tokens_kv = 8192;
  problem.q.layout = problem.k.layout = problem.v.layout = problem.o.layout = Layout::kTHD;
  const AttentionProblem trial = trial_problem(compiler::compile(problem)).problem;
  const ProblemInputs inputs = trial_inputs(trial, {trial.effective_scale(), {}, nullptr});
  const ProblemInputs plain = plain_inputs(trial);
  ASSERT_EQ(inputs.operands.size(), 2u);
  for (std::size_t i = 0; i < inputs.operands.size(); ++i) EXPECT_EQ(inputs.operands[i].bytes, plain.operands[i].bytes);
}

/// KV heads have scales of their own, and a query head is far by that of its KV head.
TEST(TrialInputs, MakeScoresFarByTheScaleOfTheirKvHead) {
  AttentionProblem problem = problem_with("value = score", DType::kBF16);
  problem.heads_q = 8;
  problem.heads_kv = 4;
  problem.dtype_kv = DType::kE4M3;
  problem.operands = {{"descale_k", DType::kF32, {4}, {}}, {"descale_v", DType::kF32, {4}, {}}};
  problem = problem::with_implied_operands(std::move(problem));
  const ProblemInputs inputs = trial_inputs(problem, {problem.effective_scale(), {}, nullptr});
  const std::vector<std::byte> plain = plain_inputs(problem).q;
  std::vector<const void*> operands;
  for (const OwnedOperand& operand : inputs.operands) operands.push_back(operand.bytes.data());
  const problem::StoredUnit unit(problem, problem::TensorRole::kK);
  std::vector<double> far(8);
  problem::placed_tensor(problem, problem::TensorRole::kQ, operands)
      .for_each_offset([&](std::int64_t number, std::int64_t offset) {
        const auto query = load_element<double>(inputs.q.data(), problem.dtype, offset);
        if (query == load_element<double>(plain.data(), problem.dtype, offset)) return;
        const std::int64_t head = number / problem.dim_qk / problem.seq_q % problem.heads_q;
        far[static_cast<std::size_t>(head)] = query * unit.of(operands, head / 2);
      });
  EXPECT_NE(far.front(), 0);
  for (const double score : far) EXPECT_NEAR(score / far.front(), 1, 0x1p-6);
}

TEST(TrialInputs, AreTheRandomOnesWhereTheProgramAllowsNoOther) {
  for (const char* program : {"value = 20.0 * tanh(score / 20.0)", "value = log(score)", "value = sqrt(score)"}) {
    const AttentionProblem problem = problem_with(program);
    const ProblemInputs inputs = trial_inputs(problem, {problem.effective_scale(), {}, nullptr});
    EXPECT_EQ(inputs.q, random_inputs(problem).q) << program;
    EXPECT_EQ(inputs.k, random_inputs(problem).k) << program;
  }
}

}  // namespace
}  // namespace scoremod::verification
