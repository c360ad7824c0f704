#include "backend/cudnn/lowering/lower.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "scoremod/zoo.hpp"

#include "backend/cudnn/lowering/graph_writer.hpp"
#include "backend/cudnn/lowering/node_budget.hpp"
#include "backend/cudnn/patterns/pattern_table.hpp"
#include "base/fail.hpp"
#include "compiler/pipeline.hpp"

namespace scoremod::backend::cudnn {
namespace {

struct Lengths {
  std::int64_t q = 256, kv = 256;
};

compiler::CompiledProblem compiled(const Program& program, Lengths lengths = {}) {
  AttentionProblem problem;
  problem.batch = 2;
  problem.heads_q = problem.heads_kv = 4;
  problem.seq_q = lengths.q;
  problem.seq_kv = lengths.kv;
  problem.dtype = DType::kBF16;
  problem.backward = true;
  problem.program = program;
  const std::array<std::int64_t, kAxisCount> sizes{2, 4, lengths.q, lengths.kv};
  for (const OperandDecl& decl : program.operands()) {
    const DType dtype = decl.type == Type::kF32 ? DType::kF32 : decl.type == Type::kI32 ? DType::kI32 : DType::kBool;
    OperandSpec spec{decl.name, dtype, {}, {}};
    if (decl.is_table()) spec.shape.assign(static_cast<std::size_t>(decl.table_rank), 32);
    for (std::size_t axis = 0; axis < sizes.size(); ++axis) {
      if (decl.axes[axis]) spec.shape.push_back(sizes[axis]);
    }
    problem.operands.push_back(spec);
  }
  return compiler::compile(problem);
}

bool everything(std::string_view) { return true; }

LoweringResult lowered(const std::string& program, bool backward = false, Lengths lengths = {},
                       PatternFilter allowed = everything, int node_budget = 0) {
  return lower(compiled(Program::parse(program), lengths), {backward, false, allowed, node_budget});
}

std::string text_of(const LoweringResult& result) {
  return result.lowered ? to_string(result.lowered->graph) : "refused: " + result.reasons.front();
}

TEST(CudnnLower, PutsTheBandLastWhereItIsRecognised) {
  EXPECT_EQ(text_of(lowered("value = 50.0 * tanh(score / 50.0)\nkeep = q_idx >= kv_idx & q_idx - kv_idx < 100")),
            "n0 = mul.f32 score 0.02f\n"
            "n1 = tanh.f32 n0\n"
            "n2 = mul.f32 n1 50f\n"
            "n3 = band.f32 n2 right 0\n"
            "n4 = band.f32 n3 left 100\n"
            "value = n4\n");
}

TEST(CudnnLower, NeverComparesTwoIndicesDirectly) {
  const LoweringResult result = lowered("value = select(q_idx > kv_idx, score, score * 0.5)");
  ASSERT_TRUE(result.lowered);
  for (const ModifierNode& node : result.lowered->graph.nodes) {
    if (node.mode >= Mode::kCmpEq && node.mode <= Mode::kCmpGe) {
      EXPECT_EQ(node.inputs[1].kind, Ref::Kind::kInt32) << text_of(result);
    }
  }
}

TEST(CudnnLower, TheFirstInputIsAlwaysComputed) {
  for (const char* program :
       {"value = 1.0 - score", "value = 2.0 / (abs(score) + 1.0)", "operand x: f32 [h]\nvalue = x * x + score",
        "operand x: f32 [h]\nvalue = x - score", "value = select(q_idx == 3, 1.0, score)"}) {
    const LoweringResult result = lowered(program);
    ASSERT_TRUE(result.lowered) << program;
    for (const ModifierNode& node : result.lowered->graph.nodes) {
      if (node.mode == Mode::kGenIndex) continue;
      const Ref::Kind first = node.inputs[0].kind;
      EXPECT_TRUE(first == Ref::Kind::kScore || first == Ref::Kind::kNode || first == Ref::Kind::kUpstream)
          << text_of(result);
    }
  }
}

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

TEST(CudnnLower, CutsValueAndAdjointPastTheLastRowAndKeyInBackwardOnly) {
  const std::string program = "value = score * score";
  EXPECT_EQ(text_of(lowered(program, false, {100, 256})), "n0 = mul.f32 score score\nvalue = n0\n");
  EXPECT_EQ(text_of(lowered(program, true)).find("binary_select"), std::string::npos);
  const std::string ragged = text_of(lowered(program, true, {100, 300}));
  EXPECT_NE(ragged.find("cmp_lt.i32->bool n1 100"), std::string::npos) << ragged;
  EXPECT_NE(ragged.find(" -inff "), std::string::npos) << ragged;
  EXPECT_NE(ragged.find(" 0f "), std::string::npos) << ragged;
}

TEST(CudnnLower, AnAdjointThatPassesThroughNeedsNoCallback) {
  const LoweringResult result = lowered("value = score + f32(q_idx - kv_idx)", true);
  ASSERT_TRUE(result.lowered);
  EXPECT_EQ(result.lowered->graph.d_score.kind, Ref::Kind::kNone);
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

/// What is made of a computed operand along the same axes is computed with it; what spans more axes is written.
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

TEST(CudnnLower, SaysWhyNot) {
  const auto reason = [](const LoweringResult& result) { return result.lowered ? "" : result.reasons.front(); };
  EXPECT_NE(reason(lowered("table t: f32 rank 1\nvalue = score + t[i32(score)]"))
                .find("table 't' is read at indices that depend on the score"),
            std::string::npos);
  EXPECT_NE(reason(lowered("value = score + f32(i32(score) % 7)")).find("'%'"), std::string::npos);
  const auto no_tanh = [](std::string_view pattern) { return pattern != "tanh.f32"; };
  EXPECT_NE(
      reason(lowered("value = tanh(score)", false, {}, no_tanh)).find("pattern 'tanh.f32' was not seen to be right"),
      std::string::npos);
}

TEST(CudnnLower, CountsNodesBeforeCudnnSeesThem) {
  const int budget = node_budget(AttentionProblem{}, false);
  std::string chain = "let x0 = score\n";
  for (int i = 0; i < budget; ++i) chain += concat("let x", i + 1, " = sin(x", i, ")\n");
  EXPECT_TRUE(lowered(concat(chain, "value = x", budget)).lowered);
  const LoweringResult over = lowered(concat(chain, "value = sin(x", budget, ")"));
  ASSERT_FALSE(over.lowered);
  EXPECT_NE(over.reasons.front().find(concat("needs ", budget + 1, " cuDNN nodes")), std::string::npos)
      << over.reasons.front();
}

PatternFilter right_on_h200(bool backward, RowClass rows = RowClass::kManyRows) {
  return [table = shipped_pattern_table("sm_90", "9.19.0", rows), backward](std::string_view pattern) {
    return table.find(pattern, backward ? Direction::kBackward : Direction::kForward) == PatternVerdict::kRight;
  };
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

/// All patterns but these.
PatternFilter without(std::initializer_list<const char*> patterns) {
  return [left_out = std::set<std::string, std::less<>>(patterns.begin(), patterns.end())](std::string_view pattern) {
    return !left_out.contains(pattern);
  };
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
  // Of two that depend on the score, or of none, the order stays.
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

TEST(CudnnLower, MasksEverythingWhereNoKeyIsKept) {
  EXPECT_NE(text_of(lowered("value = score\nkeep = q_idx < 0")).find("binary_select.f32 score -inff"),
            std::string::npos);
}

TEST(CudnnLower, AnAdjointThatIsZeroReadsTheUpstreamGradient) {
  EXPECT_NE(text_of(lowered("value = floor(score)", true)).find("mul.f32 upstream 0f"), std::string::npos);
}

/// Expressions that vary along rows alone are computed where there are many nodes; those that vary along both axes only
/// where the rest doesn't fit, for their memory grows with the number of scores.
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

/// A huge program is computed beforehand without a search.
TEST(CudnnLower, LowersAHugeProgramInAMoment) {
  std::string huge = "let x0 = f32(q_idx - kv_idx)\n";
  for (int i = 0; i < 2000; ++i) {
    huge += concat("let x", i + 1, " = sin(x", i, ")", i % 2 == 0 ? "" : " + f32(kv_idx)", "\n");
  }
  const LoweringResult result = lowered(huge + "value = score + x2000");
  ASSERT_TRUE(result.lowered) << text_of(result);
  EXPECT_EQ(result.lowered->graph.nodes.size(), 1u);
}

TEST(CudnnLower, RefusesAHugeScoreFunctionInAMoment) {
  std::string huge = "let x0 = score\n";
  for (int i = 0; i < 20000; ++i) huge += concat("let x", i + 1, " = sin(x", i, ")\n");
  const LoweringResult result = lowered(huge + "value = x20000");
  ASSERT_FALSE(result.lowered);
  EXPECT_NE(result.reasons.front().find("more than 1024 nodes"), std::string::npos) << result.reasons.front();
}

/// cuDNN takes two reads of row vectors in backward; here there are six.
TEST(CudnnLower, ReadsFewRowVectorsInBackward) {
  const std::string program =
      "operand x: f32 [q_idx]\noperand y: f32 [q_idx]\noperand z: f32 [q_idx]\nvalue = score * x * y * z";
  const LoweringResult result = lowered(program, true, {}, right_on_h200(true));
  ASSERT_TRUE(result.lowered) << text_of(result);
  EXPECT_TRUE(result.lowered->patterns.contains("row_vector_uses.2")) << text_of(result);
}

/// What a device said of the whole zoo: each modifier has a lowering in right patterns, and was right as a whole.
TEST(CudnnLower, LowersTheWholeZooIntoPatternsThatWereRight) {
  const PatternTable table = shipped_pattern_table("sm_90", "9.19.0", RowClass::kManyRows);
  for (const zoo::Entry& entry : zoo::entries()) {
    zoo::Parameters parameters;
    for (const zoo::Parameter& parameter : entry.parameters) {
      if (parameter.default_value) continue;
      if (parameter.type == zoo::ParameterType::kInt)
        parameters[parameter.name] = std::int64_t{13};
      else if (parameter.type == zoo::ParameterType::kAxes)
        parameters[parameter.name] = std::string("h, q_idx, kv_idx");
      else
        parameters[parameter.name] = 5.0;
    }
    const zoo::Modifier modifier = zoo::make(entry.name, parameters, {2, 4, 256, 256});
    const compiler::CompiledProblem problem = compiled(zoo::combine(std::array{modifier}).program);
    for (const bool backward : {false, true}) {
      const Direction direction = backward ? Direction::kBackward : Direction::kForward;
      const auto right = [&](std::string_view pattern) {
        return table.find(pattern, direction) == PatternVerdict::kRight;
      };
      const LoweringResult result = lower(problem, {backward, false, right});
      ASSERT_TRUE(result.lowered) << entry.name << ": " << text_of(result);
      EXPECT_EQ(table.find("zoo." + entry.name, direction), PatternVerdict::kRight) << entry.name << "\n"
                                                                                    << text_of(result);
    }
  }
}

}  // namespace
}  // namespace scoremod::backend::cudnn
