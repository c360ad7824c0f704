#include "autodiff/differentiate.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "support/interpreter.hpp"
#include "support/refusal.hpp"

namespace scoremod {
namespace {

std::string derivative_of(const char* text) { return autodiff::differentiate(Program::parse(text)).to_string(); }

double d_score(const char* text, double score, double upstream = 1) {
  const Program derivative = autodiff::differentiate(Program::parse(text));
  test::Element<double> element;
  element.score = score;
  element.upstream = upstream;
  const auto values = test::interpret(derivative, element);
  for (const Root& root : derivative.roots()) {
    if (root.kind == RootKind::kScoreAdjoint) return values[root.node].f;
  }
  ADD_FAILURE() << "no d_score root";
  return 0;
}

constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(Differentiate, IdentityPassesTheUpstreamThrough) {
  EXPECT_EQ(derivative_of("value = score"), "value = score\nd_score = upstream\n");
}

TEST(Differentiate, ValueWithoutTheScoreHasZeroDerivative) {
  EXPECT_EQ(derivative_of("value = f32(q_idx)"), "value = f32(q_idx)\nd_score = 0.0\n");
  EXPECT_EQ(derivative_of("value = floor(score)"), "value = floor(score)\nd_score = 0.0\n");
}

TEST(Differentiate, SoftCapIsPlainArithmeticOnTheForwardValue) {
  EXPECT_EQ(derivative_of("value = tanh(score / 50.0) * 50.0"),
            "let %0 = tanh(score / 50.0)\n"
            "value = %0 * 50.0\n"
            "d_score = upstream * (1.0 - %0 * %0)\n");
}

TEST(Differentiate, ASurrogateHasTheDerivativeOfItsSecondArgument) {
  // Straight through: the derivative of the rounded number.
  EXPECT_EQ(d_score("value = surrogate(round(score * 3.0), score * 3.0)", 0.7, 2), 6);
  EXPECT_EQ(d_score("value = surrogate(score * score, 0.0)", 0.7), 0);
  EXPECT_EQ(d_score("value = score * surrogate(score, 0.0)", 0.7), 0.7);
  // Only the second argument's operands have a gradient.
  const Program derivative = autodiff::differentiate(
      Program::parse("operand x: f32 [h]\noperand y: f32 [h]\nvalue = surrogate(score * x, score * y)"));
  for (const Root& root : derivative.roots()) {
    if (root.kind != RootKind::kOperandAdjoint) continue;
    EXPECT_EQ(derivative.operands()[root.operand].name, "y");
  }
}

TEST(Differentiate, KeepIsKept) {
  EXPECT_EQ(derivative_of("value = score\nkeep = q_idx >= kv_idx"),
            "value = score\nkeep = q_idx >= kv_idx\nd_score = upstream\n");
}

TEST(Differentiate, OperandsGetOneRootForEachRead) {
  EXPECT_EQ(derivative_of("operand w: f32 [h]\n"
                          "operand n: i32 [b]\n"
                          "table t: f32 rank 1\n"
                          "value = score * w + t[q_idx] + t[kv_idx] + t[q_idx] + w + f32(n)"),
            "operand w: f32 [h]\n"
            "operand n: i32 [b]\n"
            "table t: f32 rank 1\n"
            "let %0 = t[q_idx]\n"
            "value = score * w + %0 + t[kv_idx] + %0 + w + f32(n)\n"
            "d_score = upstream * w\n"
            "accumulate w += upstream + upstream * score\n"
            "accumulate t[q_idx] += upstream * 2.0\n"
            "accumulate t[kv_idx] += upstream\n");
}

TEST(Differentiate, ATableOfTheHighestRankHasAGradientAtItsIndices) {
  const std::string declared = "table t: f32 rank 4\n";
  EXPECT_EQ(derivative_of((declared + "value = score + t[b, h, q_idx, kv_idx]").c_str()),
            declared +
                "value = score + t[b, h, q_idx, kv_idx]\n"
                "d_score = upstream\n"
                "accumulate t[b, h, q_idx, kv_idx] += upstream\n");
}

TEST(Differentiate, BranchesOfOneConditionShareTheirSelect) {
  EXPECT_EQ(derivative_of("value = select(q_idx > kv_idx, score * 2.0, score * 3.0)"),
            "let %0 = q_idx > kv_idx\n"
            "value = select(%0, score * 2.0, score * 3.0)\n"
            "d_score = select(%0, upstream * 2.0, upstream * 3.0)\n");
}

TEST(Differentiate, RefusesADerivative) {
  const Program derivative = autodiff::differentiate(Program());
  test::refusal([&] { autodiff::differentiate(derivative); });
}

// The conventions at kinks, as jax.grad has them.
TEST(Differentiate, Kinks) {
  EXPECT_EQ(d_score("value = relu(score)", 0), 0);
  EXPECT_EQ(d_score("value = abs(score)", 0), 1);
  EXPECT_EQ(d_score("value = abs(score)", -0.0), 1);
  EXPECT_EQ(d_score("value = abs(score)", -0.5), -1);
  EXPECT_EQ(d_score("value = max(score, 1.0)", 1), 0.5);
  EXPECT_EQ(d_score("value = min(1.0, score)", 1), 0.5);
  EXPECT_EQ(d_score("value = min(score, score)", 1), 1);
  EXPECT_EQ(d_score("value = max(score, 1.0)", 2), 1);
  EXPECT_EQ(d_score("value = max(score, 1.0)", 0), 0);
  EXPECT_EQ(d_score("value = sign(score) + round(score) + ceil(score)", 0.5), 0);
  EXPECT_EQ(d_score("value = score % 3.0", 3), 1);
  EXPECT_EQ(d_score("value = 7.0 % score", 2), -3);
  EXPECT_EQ(d_score("value = pow(score, 2.0)", 0), 0);
  EXPECT_EQ(d_score("value = pow(score, 0.0)", 0), 0);
  EXPECT_EQ(d_score("value = pow(score, 1.0)", 0), 1);
  EXPECT_EQ(d_score("value = pow(score, 3.0)", -2), 12);
  EXPECT_EQ(d_score("value = pow(0.0, score)", 2), 0);
  EXPECT_EQ(d_score("value = pow(-2.0, score)", 2), 0);
  EXPECT_EQ(d_score("value = sqrt(score)", 0), kInf);
}

// A branch that is not chosen gets zero, whatever its derivative is there.
TEST(Differentiate, UntakenBranchesGiveExactlyZero) {
  EXPECT_EQ(d_score("value = select(score > 0.0, log(score), 0.0)", 0), 0);
  EXPECT_EQ(d_score("value = select(score > 0.0, log(score), 0.0)", -1), 0);
  EXPECT_EQ(d_score("value = select(score > 0.0, log(score), 0.0)", 2), 0.5);
  EXPECT_EQ(d_score("value = select(score > 0.0, sqrt(score), score)", 0), 1);
  EXPECT_EQ(d_score("value = sqrt(relu(score))", 0), 0);
  EXPECT_EQ(d_score("value = select(score < 80.0, exp(score * score * score), 1.0)", 1000), 0);
  EXPECT_EQ(d_score("value = select(score > 0.0, pow(score, 0.5), 0.0)", 0), 0);
  EXPECT_EQ(d_score("value = select(score > 0.0, 1.0 / score, 0.0)", 0), 0);
  // One function is used under two conditions, neither of which holds.
  const char* twice =
      "let l = log(score)\n"
      "value = select(score > 0.0, l, 0.0) + select(score > 1.0, l, 0.0)";
  EXPECT_EQ(d_score(twice, 0), 0);
  EXPECT_EQ(d_score(twice, 0.5), 2);
  EXPECT_EQ(d_score(twice, 2), 1);
  // Nested conditions.
  const char* nested =
      "let l = sqrt(score)\n"
      "value = select(score >= 0.0, select(score > 1.0, l, select(score > 0.0, l * 2.0, 3.0)), 5.0)";
  EXPECT_EQ(d_score(nested, 4), 0.25);
  EXPECT_EQ(d_score(nested, 0.25), 2);
  EXPECT_EQ(d_score(nested, 0), 0);
  EXPECT_EQ(d_score(nested, -1), 0);
}

// An upstream that is NaN or infinite where the branch is not taken stays out as well.
TEST(Differentiate, UntakenBranchesIgnoreTheUpstream) {
  EXPECT_EQ(d_score("value = select(score > 0.0, score, 0.0)", -1, std::nan("")), 0);
}

TEST(Differentiate, ConstantFactorsAreMultipliedOnce) {
  EXPECT_EQ(derivative_of("value = -(score * 3.0) / -1.5"),
            "value = -(score * 3.0) / -1.5\nd_score = upstream * 2.0\n");
  EXPECT_EQ(derivative_of("let t = tanh(score)\nvalue = t * 2.0 - t * 3.0"),
            "let %0 = tanh(score)\n"
            "value = %0 * 2.0 - %0 * 3.0\n"
            "d_score = -(upstream * (1.0 - %0 * %0))\n");
}

TEST(Differentiate, FactorsStayWithinF32) {
  std::string text = "score";
  for (int i = 0; i < 12; ++i) text = "(" + text + " * 1e10)";
  for (int i = 0; i < 12; ++i) text = "(" + text + " / 1e10)";
  EXPECT_NEAR(d_score(("value = " + text).c_str(), 1), 1, 1e-6);
  EXPECT_EQ(d_score("value = score * 0.0", 1), 0);
  EXPECT_EQ(d_score("value = score * 3e38", 1), static_cast<double>(3e38f));
  EXPECT_EQ(d_score("value = score * inf", 1), kInf);
  EXPECT_EQ(d_score("value = score / 0.0", 1), kInf);
  EXPECT_EQ(d_score("value = score * 1e-40 * 1e-40 / 1e-40", 1), static_cast<double>(1e-40f));
}

TEST(Differentiate, ABranchThatAnOuterConditionForbidsSendsNothing) {
  EXPECT_EQ(d_score("value = select(q_idx < 0, 2.0, select(q_idx < 0, score * 5.0, score * 3.0))", 1), 3);
  EXPECT_EQ(d_score("value = select(q_idx >= 0, 2.0, select(q_idx >= 0, score * 5.0, score * 3.0))", 1), 0);
}

TEST(Differentiate, DeepNestsStayLinear) {
  std::string text = "let x0 = score\n";
  constexpr int kDepth = 2000;
  for (int i = 0; i < kDepth; ++i) {
    text += "let x" + std::to_string(i + 1) + " = select(q_idx > " + std::to_string(i) + ", x" + std::to_string(i) +
            ", score * 2.0)\n";
  }
  text += "value = x" + std::to_string(kDepth);
  const Program program = Program::parse(text);
  EXPECT_LT(autodiff::differentiate(program).nodes().size(), 8 * program.nodes().size());
}

}  // namespace
}  // namespace scoremod
