#include "verification/trial_problem.hpp"

#include <gtest/gtest.h>

#include "compiler/pipeline.hpp"

namespace scoremod::verification {
namespace {

AttentionProblem large_problem(const std::string& program) {
  AttentionProblem problem;
  problem.batch = 8;
  problem.heads_q = 32;
  problem.heads_kv = 4;
  problem.seq_q = 4096;
  problem.seq_kv = 8192;
  problem.dim_qk = 192;
  problem.dim_v = 128;
  problem.dtype = DType::kBF16;
  problem.backward = true;
  problem.program = Program::parse(program);
  for (const OperandDecl& decl : problem.program.operands()) {
    OperandSpec spec{decl.name, decl.type == Type::kF32 ? DType::kF32 : DType::kI32, {}, {}};
    if (decl.is_table()) spec.shape.assign(static_cast<std::size_t>(decl.table_rank), 64);
    const std::array<std::int64_t, kAxisCount> sizes{8, 32, 4096, 8192};
    for (std::size_t i = 0; i < kAxisCount; ++i) {
      if (decl.axes[i]) spec.shape.push_back(sizes[i]);
    }
    problem.operands.push_back(spec);
  }
  return problem;
}

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
  EXPECT_EQ(trial.heads_q, 6);
  EXPECT_EQ(trial.seq_q % 128, 0);
  EXPECT_EQ(trial.seq_kv % 128, 0);
  EXPECT_LT(trial.seq_q, trial.seq_kv);
  EXPECT_LE(trial.seq_kv, 512);
  EXPECT_EQ(trial.dim_qk, 192);
  EXPECT_EQ(trial.dim_v, 128);
  EXPECT_EQ(trial.operands[0].shape, (std::vector<std::int64_t>{6}));
  EXPECT_EQ(trial.operands[1].shape, (std::vector<std::int64_t>{64}));
  EXPECT_EQ(trial.effective_scale(), problem.problem.effective_scale());
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

TEST(TrialProblem, IsLongerThanTheProgramsConstants) {
  const AttentionProblem trial = trial_problem(compiler::compile(large_problem(kWindow))).problem;
  EXPECT_GT(trial.seq_q, 512);
  EXPECT_LE(trial.seq_q, 1024);
}

TEST(TrialProblem, PacksStridesInTheirOrder) {
  AttentionProblem problem = large_problem("value = score * 2.0");
  problem.backward = false;
  problem.q.strides = Strides{32 * 4096 * 256, 256, 32 * 256, 1};
  problem.k.strides = Strides{0, 192, 4 * 192, 1};
  const AttentionProblem trial = trial_problem(compiler::compile(problem)).problem;
  EXPECT_NO_THROW(validate(trial));
  EXPECT_EQ(trial.q.strides->head, 192);
  EXPECT_EQ(trial.q.strides->sequence, 6 * 192);
  EXPECT_EQ(trial.k.strides->batch, 0);
}

}  // namespace
}  // namespace scoremod::verification
