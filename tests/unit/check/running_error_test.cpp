#include "check/running_error.hpp"

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "check/random_program.hpp"

namespace scoremod::checking {
namespace {

using backend::reference::Element;
using backend::reference::Interpreter;
using backend::reference::OperandView;

constexpr double kU = 0x1p-24;
const std::vector<OperandView> kNoOperands;

/// The move of a program's value at a score, at query 6 and key 4.
double move_of(const std::string& text, double score) {
  const Program program = Program::parse(text);
  Interpreter<double> values(program, kNoOperands, {});
  values.evaluate({0, 0, 6, 4}, score);
  RunningError error(program);
  error.analyze(values);
  return error.at(program.value());
}

void expect_near(double found, double expected) { EXPECT_NEAR(found, expected, 1e-6 * expected + 1e-30); }

TEST(RunningError, SumsAndProducts) {
  const double s = 1.1;
  expect_near(move_of("value = score", s), 0);
  expect_near(move_of("value = score + 3.0", s), kU * 4.1);
  expect_near(move_of("value = score * 3.0", s), kU * 3.3);
  expect_near(move_of("let p = score * 3.0\nvalue = p * p", s), kU * (3 * 3.3 * 3.3));
  expect_near(move_of("let p = score * 3.0\nvalue = p - (score + 1.0)", s), kU * (3.3 + 2.1 + 1.2));
}

TEST(RunningError, WhatCancelsKeepsTheMovesOfItsParts) {
  expect_near(move_of("value = score + 100.0 - 100.0", 1.1), kU * (101.1 + 1.1));
  // The value is 0 and no rounding of it remains.
  const double quotient = 1.1 / 3;
  expect_near(move_of("value = score / 3.0 * 3.0 - score", 1.1), 3 * (3 * kU * quotient) + kU * 1.1);
}

TEST(RunningError, FunctionsBySlope) {
  const double s = 0.7;
  const double t = std::tanh(s);
  expect_near(move_of("value = tanh(score)", s), kU * ((1 - t * t) * 2 * s + 2 * t));
  const double e = std::exp(3 * s);
  expect_near(move_of("value = exp(score * 3.0)", s), kU * (e * (3 * 3 * s) + 2 * e));
  // Far from its jump a floor moves nothing; where the argument may lie on either side it moves by 1.
  expect_near(move_of("value = floor(score * 3.0)", s), 0);
  expect_near(move_of("value = floor(score * 3.0)", (1 + 1e-9) / 3), 1);
  EXPECT_FALSE(std::isfinite(move_of("value = log(score * 3.0 - 3.0)", 1 + 1e-9)));
}

TEST(RunningError, WhatOnlySelectsRoundsNothing) {
  EXPECT_EQ(move_of("value = max(-abs(score), -7.0)", 1.1), 0);
  EXPECT_EQ(move_of("value = select(q_idx > kv_idx, score, exp(score))", 1.1), 0);
  EXPECT_GT(move_of("value = select(q_idx < kv_idx, score, exp(score))", 1.1), 0);
}

/// Found on a device: max(tanh(s), ...) within the functions' errors of its kink, whose derivative took the other
/// branch.
TEST(RunningError, ComparisonsWithinTheirMovesGoEitherWay) {
  const double s = 0.7;
  const std::string tie = std::to_string(std::tanh(s)), apart = std::to_string(std::tanh(s) + 1e-3);
  const auto selected = [](const std::string& bound) {
    return "value = select(tanh(score) > " + bound + ", 5.0, 2.0)";
  };
  // std::to_string has six digits, and a tie of half a unit of the sixth is one of a function's error alone.
  const Program program = Program::parse(selected(tie));
  Interpreter<double> values(program, kNoOperands, {});
  values.evaluate({0, 0, 6, 4}, s);
  RunningError error(program, 0x1p-17);
  error.analyze(values);
  EXPECT_EQ(error.at(program.value()), 3);
  EXPECT_EQ(move_of(selected(apart), s), 0);
  EXPECT_EQ(move_of("value = select(score > 0.7 & tanh(score) > 9.0, 5.0, 2.0)", s), 0) << "the other side decides";
  EXPECT_EQ(move_of("value = f32(exp(score) >= exp(score * 1.0000001) & kv_idx == 4)", s), 1);
  EXPECT_EQ(move_of("value = f32(exp(score) >= exp(score * 1.0000001) & kv_idx == 5)", s), 0);
}

/// At d = 8 buckets by a logarithm are decided by a last digit.
TEST(RunningError, IntegersOfNumbersWithinTheirMovesGoEitherWay) {
  const std::string far = "let far = i32(log(f32(q_idx + 2) / 4.0) / 1.38629436 * 4.0)\n";
  EXPECT_EQ(move_of(far + "value = f32(far)", 0), 1);
  EXPECT_EQ(move_of(far + "value = f32(min(far * 3 + kv_idx, 99))", 0), 3);
  EXPECT_EQ(move_of(far + "value = f32(min(far, -3))", 0), 0);
  EXPECT_EQ(move_of(far + "value = select(far == 2, 5.0, 2.0)", 0), 3);
  EXPECT_EQ(move_of(far + "value = select(far == 7, 5.0, 2.0)", 0), 0);
  EXPECT_EQ(move_of("value = f32(i32(log(f32(q_idx)) * 4.0))", 0), 0) << "no tie";
  const Program program = Program::parse("table t: f32 rank 1\n" + far + "value = t[far]");
  const std::vector<float> entries{0, 10, 30, 70};
  const std::vector<OperandView> views{{program.operands()[0], DType::kF32, entries.data(), {4}, {1}}};
  Interpreter<double> values(program, views, {});
  values.evaluate({0, 0, 6, 4}, 0);
  RunningError error(program);
  error.analyze(values);
  EXPECT_EQ(error.at(program.value()), values.value() == 10 ? 20 : 40) << "one entry on, or one back";
}

TEST(RunningError, ArithmeticThatFloat32HoldsIsExact) {
  EXPECT_EQ(move_of("value = f32(q_idx - kv_idx) / 8.0 + f32(q_idx) * 0.5", 0), 0);
  EXPECT_EQ(move_of("value = floor(f32(q_idx) / 3.0)", 0), 0);
  EXPECT_EQ(move_of("value = f32(q_idx) % 3.0", 0), 0);
  EXPECT_GT(move_of("value = f32(q_idx) / 7.0", 0), 0);
}

TEST(RunningError, ValuesThatAreNotFiniteHaveNone) {
  EXPECT_EQ(move_of("value = score + -inf", 1.1), 0);
  EXPECT_EQ(move_of("value = max(score * 3.0 + -inf, 5.0)", 1.1), 0);
  EXPECT_EQ(move_of("value = exp(score + -inf)", 1.1), 0);
}

TEST(RunningError, BoundsFloat32Evaluation) {
  RandomProgramOptions options;
  options.max_operands = 0;
  double closest = 0;
  for (std::uint64_t number = 0; number < 400; ++number) {
    std::mt19937_64 random(number);
    const Program program = random_program(random, options);
    Interpreter<double> exact(program, kNoOperands, {});
    Interpreter<float> rounded(program, kNoOperands, {});
    RunningError error(program);
    for (int i = 0; i < 20; ++i) {
      const auto score = static_cast<float>(static_cast<double>(random() >> 11) * 0x1p-53 * 60 - 30);
      const Element element{0, 1, i, 20 - i};
      exact.evaluate(element, static_cast<double>(score));
      rounded.evaluate(element, score);
      error.analyze(exact);
      for (NodeId node = 0; node < program.nodes().size(); ++node) {
        const Type type = program.nodes()[node].type;
        if (type == Type::kBool || !std::isfinite(exact.at(node))) continue;
        const double found = type == Type::kI32
                                 ? std::abs(static_cast<double>(rounded.scalar(node).i) - exact.scalar(node).i)
                                 : std::abs(static_cast<double>(rounded.at(node)) - exact.at(node));
        // The last terms allow for errors beyond first order, and for float32's loss below its normal numbers.
        ASSERT_LE(found, 1.001 * error.at(node) + 0x1p-126) << number << ", node " << node << "\n"
                                                            << program.to_string();
        if (error.at(node) > 0x1p-100) closest = std::max(closest, found / error.at(node));
      }
    }
  }
  EXPECT_GT(closest, 0.5);
}

}  // namespace
}  // namespace scoremod::checking
