#include "backend/cudnn/lowering/fused_gradient.hpp"

#include <gtest/gtest.h>

#include "scoremod/program.hpp"

#include "backend/cudnn/structural_key.hpp"
#include "compiler/pipeline.hpp"

namespace scoremod::backend::cudnn {
namespace {

constexpr std::array<std::int64_t, kAxisCount> kSizes{3, 4, 96, 160};

AttentionProblem problem_of(const std::string& program, DType operands = DType::kBF16) {
  AttentionProblem problem;
  problem.batch = kSizes[0];
  problem.heads_q = problem.heads_kv = kSizes[1];
  problem.seq_q = kSizes[2];
  problem.seq_kv = kSizes[3];
  problem.dtype = DType::kBF16;
  problem.backward = true;
  problem.program = Program::parse(program);
  for (const OperandDecl& decl : problem.program.operands()) {
    OperandSpec spec{decl.name, operands, {}, {}};
    for (std::size_t i = 0; i < kAxisCount; ++i) {
      if (decl.axes[i]) spec.shape.push_back(kSizes[i]);
    }
    if (decl.is_table()) spec.shape = {64};
    problem.operands.push_back(spec);
  }
  return problem;
}

std::optional<std::uint32_t> fused(const AttentionProblem& problem) {
  return fused_gradient_operand(compiler::compile(problem));
}

TEST(FusedGradient, IsOfABiasThatIsAddedToTheValue) {
  EXPECT_EQ(fused(problem_of("operand bias: f32 [h, q_idx, kv_idx]\nvalue = score + bias")), 0u);
  AttentionProblem half = problem_of("operand bias: f32 [q_idx, kv_idx]\nvalue = bias + score * 0.5", DType::kF16);
  half.dtype = DType::kF16;
  EXPECT_EQ(fused(half), 0u);
  EXPECT_EQ(fused(problem_of("operand slope: f32 [h]\noperand bias: f32 [b, h, q_idx, kv_idx]\n"
                             "value = score + f32(kv_idx - q_idx) * slope + bias\nkeep = kv_idx <= q_idx")),
            1u);
  // A cap before the bias leaves the bias's gradient unchanged; cuDNN decides whether it takes the graph.
  EXPECT_EQ(fused(problem_of("operand bias: f32 [b, q_idx, kv_idx]\nvalue = 30.0 * tanh(score / 30.0) + bias")), 0u);
}

TEST(FusedGradient, IsNotOfWhatCudnnWouldSumWrongly) {
  const std::string declared = "operand bias: f32 [h, q_idx, kv_idx]\n";
  for (const char* value : {"value = score + 2.0 * bias", "value = score * bias", "value = score - bias",
                            "value = score + bias + bias", "value = 30.0 * tanh((score + bias) / 30.0)",
                            "value = score + bias * bias", "value = select(q_idx > 3, score + bias, score)"}) {
    EXPECT_EQ(fused(problem_of(declared + value)), std::nullopt) << value;
  }
}

TEST(FusedGradient, IsNotOfShapesAndDtypesThatCudnnRefuses) {
  const std::string full = "operand bias: f32 [h, q_idx, kv_idx]\nvalue = score + bias";
  EXPECT_EQ(fused(problem_of(full, DType::kF32)), std::nullopt);
  EXPECT_EQ(fused(problem_of(full, DType::kF16)), std::nullopt);  // in a problem of bf16
  EXPECT_EQ(fused(problem_of("operand bias: f32 [h, kv_idx]\nvalue = score + bias")), std::nullopt);
  EXPECT_EQ(fused(problem_of("operand bias: f32 [h, q_idx]\nvalue = score + bias")), std::nullopt);
  EXPECT_EQ(fused(problem_of("table bias: f32 rank 1\nvalue = score + bias[kv_idx]")), std::nullopt);
  AttentionProblem problem = problem_of(full);
  problem.deterministic = true;
  EXPECT_EQ(fused(problem), std::nullopt);
  problem = problem_of(full);
  problem.backward = false;
  EXPECT_EQ(fused(problem), std::nullopt);
}

TEST(FusedGradient, LiesAsItsOperandDoes) {
  AttentionProblem problem = problem_of("operand bias: f32 [h, q_idx, kv_idx]\nvalue = score + bias");
  BiasGradient gradient = bias_gradient(problem, 0);
  EXPECT_EQ(gradient.dtype, DType::kBF16);
  EXPECT_EQ(gradient.tensor.dims, (std::array<std::int64_t, 4>{1, 4, 96, 160}));
  EXPECT_EQ(gradient.tensor.strides, (std::array<std::int64_t, 4>{96 * 160, 96 * 160, 160, 1}));
  problem.operands[0].strides = {200, 800, 1};
  gradient = bias_gradient(problem, 0);
  EXPECT_EQ(gradient.tensor.strides, (std::array<std::int64_t, 4>{96 * 160, 200, 800, 1}));
}

TEST(FusedGradient, IsPartOfTheGraphAndOfTheStructuralKey) {
  const auto problem = compiler::compile(problem_of("operand bias: f32 [h, q_idx, kv_idx]\nvalue = score + bias"));
  EXPECT_FALSE(attention_graph(problem.problem, Direction::kBackward, {}).bias_gradient);
  EXPECT_EQ(attention_graph(problem.problem, {Direction::kBackward, 0}, {}).bias_gradient,
            bias_gradient(problem.problem, 0));
  DeviceTarget target;
  target.architecture = "sm_90";
  target.cudnn_version = "9.19.0";
  const std::string with = canonical_text(structural_key({}, problem.problem, {Direction::kBackward, 0}, target));
  EXPECT_NE(with.find("with the gradient of a bf16 bias 1nnd"), std::string::npos) << with;
  EXPECT_EQ(canonical_text(structural_key({}, problem.problem, Direction::kBackward, target)).find("bias"),
            std::string::npos);
}

TEST(FusedGradient, IsForbiddenWhereTheTableHasSeenItGoWrong) {
  const auto row = [](const char* pattern, const char* verdict) {
    return std::string(R"({"pattern": ")") + pattern +
           R"(", "direction": "backward", "architecture": "sm_90", "cudnn": "9.19.0", )" +
           R"("setting": "base", "verdict": ")" + verdict + R"(", "error": 0.0, "ms": null})";
  };
  const std::string json = R"({"results": [)" + row("operand_gradient.1hqk", "right") + "," +
                           row("operand_gradient.1hqk.strided", "wrong") + "," +
                           row("operand_gradient.11qk", "crashed") + "]}";
  const PatternTable table = PatternTable::parse(json, "sm_90", "9.19.0", RowClass::kManyRows);
  BiasGradient gradient{{{1, 4, 96, 160}, {61440, 15360, 160, 1}}, DType::kBF16};
  EXPECT_EQ(gradient_objection(table, gradient), "");
  gradient.tensor.strides[1] = 16000;
  EXPECT_EQ(gradient_objection(table, gradient), "the pattern operand_gradient.1hqk.strided was wrong on a device");
  gradient.tensor = {{1, 1, 96, 160}, {15360, 15360, 160, 1}};
  EXPECT_NE(gradient_objection(table, gradient), "");
  gradient.tensor = {{3, 1, 96, 160}, {15360, 15360, 160, 1}};
  EXPECT_EQ(gradient_objection(table, gradient), "");  // never tried
}

}  // namespace
}  // namespace scoremod::backend::cudnn
