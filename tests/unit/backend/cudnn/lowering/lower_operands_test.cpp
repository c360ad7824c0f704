#include <array>
#include <string>

#include <gtest/gtest.h>

#include "backend/cudnn/lowering/lower.hpp"
#include "backend/cudnn/patterns/pattern_table.hpp"
#include "compiler/pipeline.hpp"
#include "unit/backend/cudnn/lowering/lowered_programs.hpp"

namespace scoremod::backend::cudnn {
namespace {

TEST(CudnnLower, GivesOperandsTheRowsThatCudnnNeeds) {
  const auto shipped = [](Direction direction) {
    return [table = shipped_pattern_table("sm_90", "9.19.0", RowClass::kManyRows),
            direction](std::string_view pattern) { return table.find(pattern, direction) == PatternVerdict::kRight; };
  };
  const PatternFilter forward = shipped(Direction::kForward), backward = shipped(Direction::kBackward);
  EXPECT_EQ(text_of(lowered("operand x: f32 [b]\nvalue = score * x", false, {}, forward)),
            "t0: f32 2,1,256,1 strides 1,1,0,1\nn0 = mul.f32 score t0\nvalue = n0\n");
  const std::string along_keys = "operand x: f32 [b, kv_idx]\nvalue = score + x";
  EXPECT_EQ(text_of(lowered(along_keys, false, {}, forward)),
            "t0: f32 2,1,1,256 strides 256,1,1,1\nn0 = add.f32 score t0\nvalue = n0\n");
  EXPECT_EQ(text_of(lowered(along_keys, true, {}, backward)),
            "t0: f32 2,1,256,256 strides 256,1,0,1\nn0 = add.f32 score t0\nvalue = n0\n");
}

TEST(CudnnLower, ComputesBeforehandWhatHasNoPattern) {
  const std::string table = "table t: f32 rank 1\nvalue = score + t[q_idx]";
  EXPECT_EQ(text_of(lowered(table)), "t0: f32 1,1,256,1 strides 1,1,1,1\nn0 = add.f32 score t0\nvalue = n0\n");
  const LoweringResult result = lowered(table);
  ASSERT_TRUE(result.lowered);
  ASSERT_EQ(result.lowered->computed.size(), 1u);
  const ComputedOperand& computed = result.lowered->computed[0];
  EXPECT_EQ(compiled(Program::parse(table)).forward.program.nodes()[computed.node].op, Op::kGather);
  EXPECT_EQ(computed.axes, (std::array<bool, kAxisCount>{false, false, true, false}));
  EXPECT_EQ(computed.type, Type::kF32);
  EXPECT_EQ(result.lowered->bindings[0], (TensorBinding{TensorBinding::Kind::kComputed, 0, Axis::kBatch}));
}

/// Nodes made from a computed operand along the same axes are computed with it; nodes that span more axes are written.
TEST(CudnnLower, ComputesTheLargestExpressionAlongTheSameAxes) {
  EXPECT_EQ(text_of(lowered("value = score + f32(abs(q_idx % 7 * 3 - 4)) * f32(kv_idx % 5 == 2)")),
            "t0: f32 1,1,1,256 strides 1,1,1,1\n"
            "t1: f32 1,1,256,1 strides 1,1,1,1\n"
            "n0 = gen_index.i32 axis 2\n"
            "n1 = mul.f32 n0 0f\n"
            "n2 = add.f32 n1 t0\n"
            "n3 = mul.f32 n2 t1\n"
            "n4 = add.f32 score n3\n"
            "value = n4\n");
}

TEST(CudnnLower, UsesAComputedOperandTwice) {
  const LoweringResult result = lowered("value = score * f32(q_idx % 7) + sin(score) * f32(q_idx % 7)");
  ASSERT_TRUE(result.lowered);
  EXPECT_EQ(result.lowered->computed.size(), 1u) << text_of(result);
}

/// Along more axes than the node varies along, where the smaller shape has no pattern.
TEST(CudnnLower, GivesAComputedOperandALargerShapeThatHasAForm) {
  const std::string program = "operand x: f32 [b]\nvalue = score * x";
  const auto no_batch = [](std::string_view pattern) { return !pattern.starts_with("operand.b111"); };
  const LoweringResult result = lowered(program, false, {}, no_batch);
  ASSERT_TRUE(result.lowered);
  ASSERT_EQ(result.lowered->computed.size(), 1u);
  EXPECT_EQ(result.lowered->computed[0].axes, (std::array<bool, kAxisCount>{true, true, false, false}));
}

/// Every operand dtype on every subset of the axes: right as it is, or computed beforehand.
TEST(CudnnLower, BindsEveryOperandInAFormThatWasRight) {
  const char* names[] = {"b", "h", "q_idx", "kv_idx"};
  for (const char* type : {"f32", "i32", "bool"}) {
    for (unsigned subset = 0; subset < 16; ++subset) {
      std::string axes;
      for (unsigned axis = 0; axis < 4; ++axis) {
        if (((subset >> axis) & 1u) != 0) axes += std::string(axes.empty() ? "" : ", ") + names[axis];
      }
      const std::string value = std::string(type) == "bool" ? "select(x, score, 0.5 * score)" : "score * f32(x)";
      const std::string program = std::string("operand x: ") + type + " [" + axes + "]\nvalue = " + value;
      for (const bool backward : {false, true}) {
        EXPECT_TRUE(lowered(program, backward, {}, right_on_h200(backward)).lowered)
            << program << ": " << text_of(lowered(program, backward, {}, right_on_h200(backward)));
        EXPECT_TRUE(lowered(program, backward, {1, 300}, right_on_h200(backward, RowClass::kOneRow)).lowered)
            << program << ": "
            << text_of(lowered(program, backward, {1, 300}, right_on_h200(backward, RowClass::kOneRow)));
      }
    }
  }
}

TEST(CudnnLower, ReadsScalarsFromDeviceMemory) {
  EXPECT_EQ(text_of(lowered("operand t: f32 []\nvalue = score * t", true, {}, right_on_h200(true))),
            "t0: f32 1,1,1,1 strides 1,1,1,1\nn0 = mul.f32 score t0\nn1 = mul.f32 upstream t0\nvalue = n0\n"
            "d_score = n1\n");
}

/// Expressions that vary along rows alone are computed if there are many nodes. Expressions that vary along both axes
/// are computed only if the rest doesn't fit, because their memory grows with the number of scores.
TEST(CudnnLower, ComputesAsMuchBeforehandAsTheNodeBudgetAsksFor) {
  constexpr int kBudget = 40;
  std::string along_rows = "f32(q_idx)", along_both = "f32(q_idx - kv_idx)", of_score = "score";
  for (int i = 0; i < 12; ++i) {
    along_rows = "sin(" + along_rows + ")";
    along_both = "cos(" + along_both + ")";
    of_score = "tanh(" + of_score + ")";
  }
  const LoweringResult one =
      lowered("value = " + of_score + " + " + along_rows + " + " + along_both, false, {}, everything, kBudget);
  ASSERT_TRUE(one.lowered) << text_of(one);
  EXPECT_EQ(one.lowered->computed.size(), 1u) << text_of(one);
  EXPECT_EQ(one.lowered->computed[0].axes, (std::array<bool, kAxisCount>{false, false, true, false}));
  const LoweringResult both = lowered("value = " + of_score + " * sin(" + of_score + " * 2.0) + " + of_score + " * " +
                                          along_rows + " + " + along_both + " * cos(score)",
                                      false, {}, everything, kBudget - 15);
  ASSERT_TRUE(both.lowered) << text_of(both);
  EXPECT_LE(both.lowered->graph.nodes.size(), static_cast<std::size_t>(kBudget - 15));
  EXPECT_EQ(both.lowered->computed.size(), 2u) << text_of(both);
}

/// cuDNN takes two reads of row vectors in backward; here there are six.
TEST(CudnnLower, ReadsFewRowVectorsInBackward) {
  const std::string program =
      "operand x: f32 [q_idx]\noperand y: f32 [q_idx]\noperand z: f32 [q_idx]\nvalue = score * x * y * z";
  const LoweringResult result = lowered(program, true, {}, right_on_h200(true));
  ASSERT_TRUE(result.lowered) << text_of(result);
  EXPECT_TRUE(result.lowered->patterns.contains("row_vector_uses.2")) << text_of(result);
}

/// A last tile has rows and keys of the next sequence, of which a modifier may make anything.
TEST(CudnnLower, CutsTheAdjointAtTheEndsOfVarlenSequences) {
  const auto selects = [](bool of_queries, bool of_keys) {
    AttentionProblem problem = compiled(Program::parse("value = score * score")).problem;
    if (of_queries) {
      problem.tokens_q = 300;
      problem.q.layout = problem.o.layout = Layout::kTHD;
    }
    if (of_keys) {
      problem.tokens_kv = 300;
      problem.k.layout = problem.v.layout = Layout::kTHD;
    }
    const LoweringResult result = lower(compiler::compile(problem), {true, false, everything, 0});
    const std::string text = text_of(result);
    std::size_t count = 0;
    for (std::size_t at = text.find(" 0f "); at != std::string::npos; at = text.find(" 0f ", at + 1)) ++count;
    return count;
  };
  EXPECT_EQ(selects(false, false), 0u);
  EXPECT_EQ(selects(true, false), 1u);
  EXPECT_EQ(selects(false, true), 1u);
  EXPECT_EQ(selects(true, true), 2u);
}

}  // namespace
}  // namespace scoremod::backend::cudnn
