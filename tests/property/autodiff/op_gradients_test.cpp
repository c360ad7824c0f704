// The derivative of each op by itself, held against finite differences, with the faults that the check must find.
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "autodiff/differentiate.hpp"
#include "autodiff/rules.hpp"
#include "ir/builder.hpp"
#include "ir/op_table.hpp"
#include "support/gradient_check.hpp"

namespace scoremod {
namespace {

constexpr int kPoints = 200;

/// op applied to the score and operands: each argument of f32 type is a variable of its own.
Program program_of(Op op) {
  ir::Builder builder;
  const std::uint32_t w = builder.declare({"w", Type::kF32, {false, true, false, false}, 0});
  const NodeId score = builder.leaf(Op::kScore);
  const NodeId other = builder.operand(w);
  if (op == Op::kSelect) {
    const NodeId condition = builder.make(Op::kGt, {builder.leaf(Op::kQueryIdx), builder.leaf(Op::kKeyIdx)});
    return builder.finish(builder.make(op, {condition, score, other}));
  }
  if (ir::info(op).arity == 1) return builder.finish(builder.make(op, {score}));
  return builder.finish(builder.make(op, {score, other}));
}

struct Range {
  double low, high;
};

/// The ranges of an op's arguments: its domain and the kinks beside which it is smooth.
std::vector<Range> ranges_of(Op op) {
  switch (op) {
    case Op::kLog:
    case Op::kSqrt:
    case Op::kRsqrt: return {{0.05, 9}};
    case Op::kLog1p: return {{-0.95, 9}};
    case Op::kTan: return {{-1.4, 1.4}};
    case Op::kPow:
    case Op::kAtan2: return {{0.05, 3}};
    default: return {{-4, 4}, {-0.1, 0.1}};
  }
}

test::GradientReport run(const Program& program, const Program& derivative, Op op) {
  std::mt19937 random(static_cast<unsigned>(op));
  test::GradientReport total;
  for (const Range range : ranges_of(op)) {
    for (int i = 0; i < kPoints; ++i) {
      const auto point = test::random_point(program, random, range.low, range.high);
      const test::GradientReport one = test::check_gradient(program, derivative, point);
      total.compared += one.compared;
      total.skipped += one.skipped;
      if (total.mismatch.empty()) total.mismatch = one.mismatch;
    }
  }
  return total;
}

/// A derivative that is wrong on purpose: forward values as in the program and this adjoint of the score, nothing else.
Program with_score_adjoint(const Program& program, bool zero) {
  ir::Builder builder;
  for (const OperandDecl& decl : program.operands()) builder.declare(decl);
  for (const Node& node : program.nodes()) builder.remake(node, ir::args_of(node));
  std::vector<Root> roots = program.roots();
  Root adjoint = roots.front();
  adjoint.kind = RootKind::kScoreAdjoint;
  adjoint.node = zero ? builder.constant(0.0f) : builder.leaf(Op::kUpstream);
  roots.push_back(adjoint);
  return builder.finish(roots);
}

/// Ops that take an f32: the others have no derivative to check.
std::vector<Op> float_ops() {
  std::vector<Op> ops;
  for (const ir::OpInfo& row : ir::op_table()) {
    switch (row.signature) {
      case ir::Signature::kFloatUnary:
      case ir::Signature::kNumberUnary:
      case ir::Signature::kFloatBinary:
      case ir::Signature::kNumberBinary:
      case ir::Signature::kSelect: ops.push_back(row.op); break;
      default: break;
    }
  }
  ops.push_back(Op::kToF32);
  // Whose derivative is not that of its value: Surrogate, in the tests of the derivative.
  std::erase(ops, Op::kSurrogate);
  return ops;
}

/// Ops for which a derivative of zero, or the upstream unchanged, would be a fault.
std::vector<Op> ops_with_own_derivative() {
  std::vector<Op> ops = float_ops();
  std::erase_if(ops, [](Op op) { return op == Op::kToF32 || !autodiff::is_differentiable(op); });
  return ops;
}

class OpGradient : public testing::TestWithParam<Op> {};
class WrongOpGradient : public testing::TestWithParam<Op> {};

TEST_P(OpGradient, MatchesFiniteDifferences) {
  const Program program = program_of(GetParam());
  const test::GradientReport report = run(program, autodiff::differentiate(program), GetParam());
  EXPECT_EQ(report.mismatch, "");
  EXPECT_GT(report.compared, 3 * report.skipped) << "too few points tell anything";
}

TEST_P(WrongOpGradient, ZeroedAdjointIsFound) {
  const Program program = program_of(GetParam());
  EXPECT_NE(run(program, with_score_adjoint(program, true), GetParam()).mismatch, "");
}

TEST_P(WrongOpGradient, IdentityDerivativeIsFound) {
  const Program program = program_of(GetParam());
  EXPECT_NE(run(program, with_score_adjoint(program, false), GetParam()).mismatch, "");
}

std::string test_name(const testing::TestParamInfo<Op>& op) {
  // Symbols are no test names.
  const std::string name = ir::info(op.param).name;
  const bool plain = name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string::npos;
  return (plain ? name : "op") + "_" + std::to_string(static_cast<int>(op.param));
}

INSTANTIATE_TEST_SUITE_P(EveryOp, OpGradient, testing::ValuesIn(float_ops()), test_name);
INSTANTIATE_TEST_SUITE_P(EveryOp, WrongOpGradient, testing::ValuesIn(ops_with_own_derivative()), test_name);

TEST(OpGradients, ComparisonsAndCastsHaveNone) {
  for (const char* text : {"value = f32(score > 0.0)", "value = f32(i32(score))", "value = f32(bool(score))",
                           "value = f32(score == 0.0) * 2.0"}) {
    const Program derivative = autodiff::differentiate(Program::parse(text));
    EXPECT_EQ(derivative, with_score_adjoint(Program::parse(text), true)) << text;
  }
}

}  // namespace
}  // namespace scoremod
