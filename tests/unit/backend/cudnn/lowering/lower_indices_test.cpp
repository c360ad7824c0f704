#include <string>

#include <gtest/gtest.h>

#include "backend/cudnn/lowering/graph_writer.hpp"
#include "backend/cudnn/lowering/lower.hpp"
#include "base/fail.hpp"
#include "unit/backend/cudnn/lowering/lowered_programs.hpp"

namespace scoremod::backend::cudnn {
namespace {

TEST(CudnnLower, NeverComparesTwoIndicesDirectly) {
  const LoweringResult result = lowered("value = select(q_idx > kv_idx, score, score * 0.5)");
  ASSERT_TRUE(result.lowered);
  for (const ModifierNode& node : result.lowered->graph.nodes) {
    if (node.mode >= Mode::kCmpEq && node.mode <= Mode::kCmpGe) {
      EXPECT_EQ(node.inputs[1].kind, Ref::Kind::kInt32) << text_of(result);
    }
  }
}

/// With offsets the band nodes, which count local indices, would mask other keys.
TEST(CudnnLower, ComparesGlobalIndicesWhereACallHasOffsets) {
  const compiler::CompiledProblem problem = compiled(Program::parse("value = score\nkeep = q_idx >= kv_idx"));
  const LoweringResult result = lower(problem, {false, true, right_on_h200(false)});
  EXPECT_EQ(text_of(result),
            "t0: i32 by value 1,1,1,1 strides 1,1,1,1\n"
            "t1: i32 by value 1,1,1,1 strides 1,1,1,1\n"
            "n0 = gen_index.i32 axis 3\n"
            "n1 = add.i32 n0 t0\n"
            "n2 = gen_index.i32 axis 2\n"
            "n3 = add.i32 n2 t1\n"
            "n4 = sub.i32 n1 n3\n"
            "n5 = cmp_le.i32->bool n4 0\n"
            "n6 = binary_select.f32 score -inff n5\n"
            "value = n6\n");
  ASSERT_TRUE(result.lowered);
  EXPECT_EQ(result.lowered->bindings[0], (TensorBinding{TensorBinding::Kind::kOffset, 0, Axis::kKey}));
}

TEST(CudnnLower, ComputesBatchAndHeadIndicesThatHaveOffsets) {
  const compiler::CompiledProblem problem = compiled(Program::parse("value = score * f32(h + 1)"));
  const LoweringResult result = lower(problem, {false, true, right_on_h200(false)});
  ASSERT_TRUE(result.lowered) << text_of(result);
  EXPECT_EQ(result.lowered->computed.size(), 1u);
  EXPECT_EQ(text_of(result), "t0: f32 1,4,1,1 strides 1,1,1,1\nn0 = mul.f32 score t0\nvalue = n0\n");
}

/// q < n crashes cuDNN 9.19, and q - n may wrap, as n may be any number.
TEST(CudnnLower, ComparesTheQueryIndexWithAnOperandByTheLargerOfTheTwo) {
  EXPECT_EQ(text_of(lowered("operand n: i32 [q_idx]\nvalue = select(q_idx + 0 * kv_idx < n, score, 0.0)")),
            "t0: i32 1,1,256,1 strides 1,1,1,1\n"
            "n0 = gen_index.i32 axis 2\n"
            "n1 = max.i32 n0 t0\n"
            "n2 = sub.i32 n1 n0\n"
            "n3 = cmp_neq.i32->bool n2 0\n"
            "n4 = binary_select.f32 score 0f n3\n"
            "value = n4\n");
}

TEST(CudnnLower, MultipliesAScoreByTheReciprocalOfAConstantAndDividesIndices) {
  EXPECT_NE(text_of(lowered("value = tanh(score / 50.0)")).find("mul.f32 score 0.02f"), std::string::npos);
  EXPECT_NE(text_of(lowered("value = score + floor(f32(q_idx - kv_idx) / 3.0)")).find("div.f32"), std::string::npos);
  // Its reciprocal is no normal number.
  EXPECT_NE(text_of(lowered("value = score / 3e38")).find("div.f32"), std::string::npos);
}

TEST(CudnnLower, PutsTheScoreBeforeAnIndexExpressionInSums) {
  const std::string indices = "n0 = gen_index.i32 axis 3\nn1 = identity.f32 n0\n";
  const PatternFilter allowed = without({kIntegerFactorPattern});
  EXPECT_EQ(text_of(lowered("value = f32(kv_idx) - score", false, {}, allowed)),
            indices + "n2 = neg.f32 score\nn3 = add.f32 n2 n1\nvalue = n3\n");
  EXPECT_EQ(text_of(lowered("value = f32(kv_idx) + score", false, {}, allowed)),
            indices + "n2 = add.f32 score n1\nvalue = n2\n");
  EXPECT_EQ(text_of(lowered("value = f32(kv_idx) / score", false, {}, allowed)),
            indices + "n2 = div.f32 n1 score\nvalue = n2\n");
  // If both or neither depend on the score, the order stays.
  EXPECT_EQ(text_of(lowered("value = exp(score) - score")), "n0 = exp.f32 score\nn1 = sub.f32 n0 score\nvalue = n1\n");
}

TEST(CudnnLower, MergesAnOrOfTwoBoundsOfAnIndex) {
  const std::string prefix = "value = score\nkeep = kv_idx < 100 | q_idx >= kv_idx";
  const std::string merged =
      "n0 = gen_index.i32 axis 3\nn1 = gen_index.i32 axis 2\nn2 = max.i32 n1 99\nn3 = cmp_ge.i32->bool n2 n0\n"
      "n4 = binary_select.f32 score -inff n3\nvalue = n4\n";
  EXPECT_EQ(text_of(lowered(prefix)), merged);
  EXPECT_EQ(text_of(lowered("value = score\nkeep = q_idx >= kv_idx | 99 >= kv_idx")), merged);
  const auto has_or = [](const std::string& program, const PatternFilter& allowed) {
    return text_of(lowered(program, false, {}, allowed)).find("logical_or") != std::string::npos;
  };
  EXPECT_TRUE(has_or(prefix, without({kAtMostPattern})));
  // Not bounds of one index from above, with a constant, that the merged comparison would keep.
  for (const char* keep : {"kv_idx < 100 | q_idx > kv_idx", "kv_idx > 100 | q_idx >= kv_idx",
                           "q_idx < 100 | q_idx >= kv_idx", "kv_idx - 1 < 100 | q_idx >= kv_idx - 1"}) {
    EXPECT_TRUE(has_or(concat("value = score\nkeep = ", keep), everything)) << keep;
  }
}

TEST(CudnnLower, ReadsAnIntegerFactorWithoutACast) {
  const std::string alibi = "operand x: f32 [h]\nvalue = score + f32(kv_idx - q_idx) * x";
  const auto casts = [](const std::string& program, const PatternFilter& allowed) {
    return text_of(lowered(program, false, {}, allowed)).find("identity") != std::string::npos;
  };
  EXPECT_FALSE(casts(alibi, everything));
  EXPECT_TRUE(casts(alibi, without({kIntegerFactorPattern})));
  // Read by a sum, too; of a bool; of a tensor, which may not come first.
  EXPECT_TRUE(casts("let %0 = f32(kv_idx - q_idx)\nvalue = score * %0 + %0", everything));
  EXPECT_TRUE(casts("value = score * f32(kv_idx < q_idx)", everything));
  EXPECT_TRUE(casts("operand x: i32 [q_idx, kv_idx]\nvalue = score * f32(x)", everything));
}

}  // namespace
}  // namespace scoremod::backend::cudnn
