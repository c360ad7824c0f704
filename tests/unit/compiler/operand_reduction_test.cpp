#include "compiler/operand_reduction.hpp"

#include <gtest/gtest.h>

#include "scoremod/error.hpp"

#include "compiler/pipeline.hpp"

namespace scoremod::compiler {
namespace {

using Extents = std::array<std::int64_t, kAxisCount>;

CompiledProblem compiled(const std::string& program, const std::vector<OperandSpec>& operands) {
  AttentionProblem problem;
  problem.batch = 2;
  problem.heads_q = problem.heads_kv = 3;
  problem.seq_q = 5;
  problem.seq_kv = 7;
  problem.backward = true;
  problem.program = Program::parse(program);
  problem.operands = operands;
  return compile(problem);
}

TEST(OperandReductions, AreOfTheOperandsWithAGradientInTheirOrder) {
  const CompiledProblem problem = compiled(
      "operand ids: i32 [b]\noperand heads: f32 [h]\noperand fixed: f32 []\noperand unread: f32 [q_idx]\n"
      "table bias: f32 rank 2\nvalue = score * heads + fixed + bias[h, q_idx - kv_idx]\nkeep = kv_idx < ids",
      {{"bias", DType::kF32, {3, 9}, {}},
       {"ids", DType::kI32, {2}, {}},
       {"heads", DType::kF16, {3}, {}},
       {"unread", DType::kF32, {5}, {}},
       {"fixed", DType::kF32, {}, {}, false}});
  const std::vector<OperandReduction>& reductions = problem.backward->reductions;
  ASSERT_EQ(reductions.size(), 3u);
  const OperandReduction& heads = reductions[0];
  EXPECT_EQ(heads.operand, 1u);
  EXPECT_FALSE(heads.scattered);
  EXPECT_EQ(heads.axes, (std::array{false, true, false, false}));
  EXPECT_EQ(heads.extents, (Extents{1, 3, 1, 1}));
  EXPECT_EQ(heads.roots.size(), 1u);
  EXPECT_FALSE(heads.is_upstream);
  EXPECT_EQ(reductions[1].operand, 3u);
  EXPECT_EQ(reductions[1].extents, (Extents{1, 1, 5, 1}));
  EXPECT_TRUE(reductions[1].roots.empty());
  const OperandReduction& bias = reduction_of(reductions, 4);
  EXPECT_TRUE(bias.scattered);
  EXPECT_EQ(bias.extents, (Extents{3, 9, 1, 1}));
  EXPECT_EQ(bias.entries(), 27);
  EXPECT_FALSE(bias.has(Axis::kHead));
  ASSERT_EQ(bias.roots.size(), 1u);
  EXPECT_EQ(problem.backward->program.roots()[bias.roots[0]].operand, 4u);
}

TEST(OperandReductions, KnowATermThatIsOnlyAdded) {
  const auto is_upstream = [](const char* value) {
    return compiled(std::string("operand x: f32 [q_idx, kv_idx]\nvalue = ") + value, {{"x", DType::kF32, {5, 7}, {}}})
        .backward->reductions.at(0)
        .is_upstream;
  };
  for (const char* value : {"score + x", "x + score * 0.5", "30.0 * tanh(score / 30.0) + x"}) {
    EXPECT_TRUE(is_upstream(value)) << value;
  }
  for (const char* value : {"score - x", "score + 2.0 * x", "score + x + x", "score * x", "tanh(score + x)", "score"}) {
    EXPECT_FALSE(is_upstream(value)) << value;
  }
}

TEST(OperandReductions, HaveOneRootForEachDifferentRead) {
  const CompiledProblem problem =
      compiled("table t: f32 rank 1\nvalue = score + t[q_idx] * t[kv_idx] + t[q_idx]", {{"t", DType::kF32, {11}, {}}});
  EXPECT_EQ(problem.backward->reductions.at(0).roots.size(), 2u);
}

TEST(OperandReductions, AreAskedForWhereThereIsAGradient) {
  const CompiledProblem problem = compiled("operand x: f32 []\nvalue = score + x", {{"x", DType::kF32, {}, {}, false}});
  EXPECT_TRUE(problem.backward->reductions.empty());
  EXPECT_THROW(reduction_of(problem.backward->reductions, 0), Error);
}

}  // namespace
}  // namespace scoremod::compiler
