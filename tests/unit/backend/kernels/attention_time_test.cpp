#include <gtest/gtest.h>

#include "backend/kernels/operand_gradients/operand_gradients.hpp"
#include "backend/kernels/shared/tiled_variant.hpp"
#include "compiler/pipeline.hpp"
#include "problem/tensor_view.hpp"
#include "support/tiled_call.hpp"

namespace scoremod::backend::kernels {
namespace {

AttentionProblem problem_of(const char* program) {
  AttentionProblem problem;
  problem.batch = 4;
  problem.heads_q = problem.heads_kv = 16;
  problem.seq_q = problem.seq_kv = 4096;
  problem.dim_qk = problem.dim_v = 128;
  problem.dtype = DType::kBF16;
  problem.backward = problem.stats = true;
  problem.program = Program::parse(program);
  for (const OperandDecl& decl : problem.program.operands()) {
    problem.operands.push_back(problem::default_spec(problem, decl));
    problem.operands.back().gradient = false;
    if (decl.is_table()) problem.operands.back().shape = {300};
  }
  return problem;
}

MaskWork work_of(const char* program, Direction direction = Direction::kForward) {
  const AttentionProblem problem = problem_of(program);
  return mask_work(compiler::compile(problem), direction, portable_shape(problem, direction).score_tile());
}

double time_of(const AttentionProblem& problem, Direction direction = Direction::kForward) {
  const PortableShape shape = portable_shape(problem, direction);
  const compiler::CompiledProblem compiled = compiler::compile(problem);
  return tiled_variant(shape)->time({compiled, direction, {}}, {}).milliseconds;
}
double time_of(const char* program, Direction direction = Direction::kForward) {
  return time_of(problem_of(program), direction);
}

TEST(MaskWork, IsThePartOfTilesThatAMaskLeaves) {
  const MaskWork full = work_of("value = score"), causal = work_of("value = score\nkeep = kv_idx <= q_idx");
  EXPECT_EQ(full.run, 1);
  EXPECT_EQ(full.partial, 0);
  // Two tiles of 64 keys of each row of 128 queries lie on the diagonal.
  EXPECT_NEAR(causal.run, 33.0 / 64, 0.001);
  EXPECT_NEAR(causal.partial, 2.0 / 64, 0.001);
  EXPECT_EQ(work_of("value = score\nkeep = kv_idx < 0").run, 0);
  // Eight of 64 tiles and those at both ends.
  EXPECT_NEAR(work_of("value = score\nkeep = kv_idx <= q_idx & q_idx - kv_idx < 512").run, 10.0 / 64, 0.03);
  const MaskWork grid =
      work_of("value = score\nkeep = abs(q_idx // 64 - kv_idx // 64) <= 4 & abs(q_idx % 64 - kv_idx % 64) <= 4");
  EXPECT_NEAR(grid.run, 10.0 / 64, 0.03);
  EXPECT_EQ(grid.partial, grid.run);
}

TEST(MaskWork, IsLessWhereSequencesEndEarly) {
  AttentionProblem ragged = problem_of("value = score\nkeep = kv_idx <= q_idx");
  const double dense = time_of(ragged);
  ragged.q = ragged.k = ragged.v = ragged.o = {Layout::kTHD, {}};
  ragged.tokens_q = ragged.tokens_kv = ragged.batch * ragged.seq_q;
  EXPECT_EQ(filled_part(ragged), 1);
  ragged.tokens_q = ragged.tokens_kv = ragged.batch * ragged.seq_q / 2;
  EXPECT_EQ(filled_part(ragged), 0.25);
  EXPECT_LT(time_of(ragged), dense);
}

TEST(MaskWork, TakesWhatIsUsualOfMasksThatOperandsDecide) {
  const MaskWork documents =
      work_of("operand x: i32 [b, q_idx]\noperand y: i32 [b, kv_idx]\nvalue = score\nkeep = x == y");
  EXPECT_EQ(documents.run, 0.25);
  EXPECT_GT(documents.partial, 0);
  EXPECT_LT(documents.partial, documents.run);
  const MaskWork causal =
      work_of("operand x: i32 [b, q_idx]\noperand y: i32 [b, kv_idx]\nvalue = score\nkeep = x == y & kv_idx <= q_idx");
  EXPECT_NEAR(causal.run, 0.125, 0.01);
}

TEST(MaskWork, LooksIntoTheDerivativesMaskInBackward) {
  EXPECT_NEAR(work_of("value = score\nkeep = kv_idx <= q_idx", Direction::kBackward).run, 33.0 / 64, 0.001);
}

TEST(AttentionTime, GrowsWithWhatIsDone) {
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    const double plain = time_of("value = score", direction);
    EXPECT_LT(time_of("value = score\nkeep = kv_idx <= q_idx", direction), 0.7 * plain);
    EXPECT_GT(time_of("value = tanh(score)", direction), plain);
    EXPECT_GT(time_of("value = tanh(score) + sin(score)", direction), time_of("value = tanh(score)", direction));
    // A value that is equal for all scores of a head costs nearly nothing.
    EXPECT_LT(time_of("operand x: f32 [h]\nvalue = score * pow(x, 1.5)", direction),
              time_of("operand x: f32 [h]\nvalue = score * pow(x + score, 1.5)", direction));
  }
}

/// However much is made of a difference, it is evaluated once for each head.
TEST(AttentionTime, CountsOneReadOfWhatFollowsFromDifferences) {
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    const double plain = time_of("value = score * 1.5", direction);
    const double table = time_of("table x: f32 rank 1\nvalue = score + x[max(min(kv_idx - q_idx, 99), 0)]", direction);
    EXPECT_GT(table, plain);
    EXPECT_LT(table, plain + 0.3);
    EXPECT_NEAR(time_of("value = score + sin(log(f32(abs(kv_idx - q_idx) + 1)))", direction), table, 1e-9);
    EXPECT_GT(time_of("value = score + sin(log(f32(abs(kv_idx) + 1) + score))", direction), table + 1);
  }
}

TEST(AttentionTime, KnowsThatFewRowsLeaveTheDeviceIdle) {
  AttentionProblem problem = problem_of("value = score");
  const double many = time_of(problem);
  problem.batch = problem.heads_q = problem.heads_kv = 1;
  EXPECT_GT(time_of(problem), many / 64);
  problem.seq_q = 1;
  EXPECT_GT(time_of(problem), many / 64 / 4096);
}

TEST(AttentionTime, IsScaledToTheDevice) {
  const AttentionProblem problem = problem_of("value = score");
  const PortableShape shape = portable_shape(problem, Direction::kForward);
  DeviceRates half;
  half.multiprocessors /= 2;
  half.bytes_per_ms /= 2;
  const compiler::CompiledProblem compiled = compiler::compile(problem);
  const double time = tiled_variant(shape)->time({compiled, Direction::kForward, {}}, half).milliseconds;
  EXPECT_NEAR(time, 2 * time_of(problem), 0.02);
}

TEST(OperandTime, CountsReadsOfTablesAndWalksForWhatBatchesShare) {
  const auto time = [](const char* program, std::int64_t entries = 300) {
    AttentionProblem problem = problem_of(program);
    for (OperandSpec& operand : problem.operands) {
      operand.gradient = true;
      if (problem.program.operands().front().is_table()) operand.shape = {entries};
    }
    const compiler::CompiledProblem compiled = compiler::compile(problem);
    const auto targets = operand_targets(compiled, std::vector<std::uint32_t>{0}, Gains::kApart);
    const PortableShape shape = portable_shape(problem, Direction::kBackward);
    return operand_time(compiled, targets, shape, mask_work(compiled, Direction::kBackward, shape.score_tile()), {})
        .milliseconds;
  };
  const double once = time("operand x: f32 [b, h, q_idx, kv_idx]\nvalue = score + x");
  EXPECT_GT(time("operand x: f32 [h, q_idx, kv_idx]\nvalue = score + x"), once);
  const char* const table = "table x: f32 rank 1\nvalue = score + x[kv_idx]";
  EXPECT_GT(time(table, 100000), 2 * time(table)) << "threads keep few of its sums to themselves";
  EXPECT_GT(time("table x: f32 rank 1\nvalue = score + x[kv_idx] * x[q_idx]"), time(table) + 0.5);
}

}  // namespace
}  // namespace scoremod::backend::kernels
