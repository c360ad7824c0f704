#include "check/plain_attention.hpp"

#include <cmath>

#include <gtest/gtest.h>

#include "check/score_deviation.hpp"

namespace scoremod::checking {
namespace {

AttentionProblem problem_with(const std::string& program) {
  AttentionProblem problem;
  problem.batch = 2;
  problem.heads_q = 4;
  problem.heads_kv = 2;
  problem.seq_q = 20;
  problem.seq_kv = 30;
  problem.dim_qk = problem.dim_v = 8;
  problem.program = Program::parse(program);
  return problem;
}

CheckOptions options_of(const AttentionProblem& problem) {
  CheckOptions options;
  options.inputs = random_inputs(problem, {3, {}});
  return options;
}

double deviation_of(const AttentionProblem& problem, const CheckOptions& options) {
  const ProblemInputs& inputs = *options.inputs;
  return score_deviation(problem, {inputs.q.data(), inputs.k.data(), inputs.v.data(), nullptr, {}},
                         {options.call.scale.value_or(problem.effective_scale()), {}, nullptr});
}

TEST(PlainAttention, HasNoModifierAndScoresOfTheSameDeviation) {
  for (const char* program : {"value = 2.0 * tanh(score)", "value = score * 3.0 - 250.0\nkeep = kv_idx <= q_idx"}) {
    const AttentionProblem problem = problem_with(program);
    const CheckOptions options = options_of(problem);
    const auto [plain, plain_options] = plain_attention(problem, options);
    EXPECT_EQ(plain.program, Program());
    EXPECT_EQ(plain_options.inputs->q, options.inputs->q);
    EXPECT_NEAR(deviation_of(plain, plain_options), deviation_of(problem, options), 1e-5) << program;
  }
}

TEST(PlainAttention, HasTheSameRaggedTensorsInTheSamePlaces) {
  AttentionProblem problem = problem_with("operand slope: f32 [h]\nvalue = score * slope");
  problem.operands = {{.name = "slope", .dtype = DType::kF32, .shape = {problem.heads_q}, .strides = {}}};
  problem.tokens_q = 31;
  problem.tokens_kv = 47;
  problem.q.layout = problem.k.layout = problem.v.layout = problem.o.layout = Layout::kTHD;
  const CheckOptions options = options_of(problem);
  const auto [plain, plain_options] = plain_attention(problem, options);
  ASSERT_EQ(plain_options.inputs->operands.size(), 2U);
  EXPECT_EQ(plain_options.inputs->operands[0].name, "offsets_q");
  EXPECT_EQ(plain_options.inputs->operands[1].name, "offsets_kv");
  EXPECT_TRUE(check(plain, plain_options).passed());
}

TEST(PlainAttention, OfTheIdentityIsTheProblemItself) {
  const AttentionProblem problem = problem_with("value = score");
  EXPECT_NEAR(*plain_attention(problem, options_of(problem)).second.call.scale, problem.effective_scale(), 1e-6);
}

TEST(PlainAttention, KeepsTheScaleWhereScoresAreNotFinite) {
  const AttentionProblem problem = problem_with("value = select(kv_idx == 3, inf, score)");
  EXPECT_FALSE(plain_attention(problem, options_of(problem)).second.call.scale.has_value());
}

TEST(ScoreDeviation, IsThatOfKeptKeysAroundTheirRowsMean) {
  const auto of = [](const char* program) {
    const AttentionProblem problem = problem_with(program);
    return deviation_of(problem, options_of(problem));
  };
  EXPECT_NEAR(of("value = f32(kv_idx % 2) * 4.0"), 2, 1e-12);
  EXPECT_NEAR(of("value = f32(kv_idx % 2) * 4.0 + 1000.0 * f32(q_idx + h)"), 2, 1e-9);
  EXPECT_EQ(of("value = f32(kv_idx % 2) * 4.0\nkeep = kv_idx % 2 == 0"), 0);
  EXPECT_EQ(of("value = score\nkeep = false"), 0);
}

}  // namespace
}  // namespace scoremod::checking
