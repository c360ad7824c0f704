#include "backend/cudnn/lowering/lower.hpp"

#include <array>
#include <string>

#include <gtest/gtest.h>

#include "scoremod/zoo.hpp"

#include "backend/cudnn/lowering/node_budget.hpp"
#include "backend/cudnn/patterns/pattern_table.hpp"
#include "base/fail.hpp"
#include "unit/backend/cudnn/lowering/lowered_programs.hpp"

namespace scoremod::backend::cudnn {
namespace {

TEST(CudnnLower, PutsTheBandLastWhereItIsRecognised) {
  EXPECT_EQ(text_of(lowered("value = 50.0 * tanh(score / 50.0)\nkeep = q_idx >= kv_idx & q_idx - kv_idx < 100")),
            "n0 = mul.f32 score 0.02f\n"
            "n1 = tanh.f32 n0\n"
            "n2 = mul.f32 n1 50f\n"
            "n3 = band.f32 n2 right 0\n"
            "n4 = band.f32 n3 left 100\n"
            "value = n4\n");
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

TEST(CudnnLower, MasksEverythingWhereNoKeyIsKept) {
  EXPECT_NE(text_of(lowered("value = score\nkeep = q_idx < 0")).find("binary_select.f32 score -inff"),
            std::string::npos);
}

TEST(CudnnLower, AnAdjointThatIsZeroReadsTheUpstreamGradient) {
  EXPECT_NE(text_of(lowered("value = floor(score)", true)).find("mul.f32 upstream 0f"), std::string::npos);
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

/// A device's results for the whole zoo: each modifier has a lowering in right patterns, and was right as a whole.
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
