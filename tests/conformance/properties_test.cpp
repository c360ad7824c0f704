#include <cmath>

#include <gtest/gtest.h>

#include "backend/backend.hpp"
#include "check/check_memory.hpp"
#include "check/random_problem.hpp"
#include "conformance/conformance.hpp"
#include "support/dense_attention.hpp"
#include "support/test_seed.hpp"

namespace scoremod {
namespace {

std::vector<std::string> all_backends() {
  std::vector<std::string> names = test::tested_backends();
  names.emplace_back("reference");
  return names;
}

/// Every output of one run, as it lies in memory.
struct Outputs {
  std::vector<double> o, lse, dq, dk, dv;
};

Outputs run(const std::string& backend, const AttentionProblem& problem, const ProblemInputs& inputs) {
  CompileOptions options;
  options.backend = backend;
  const Attention attention = Attention::compile(problem, options);
  checking::CheckMemory memory(problem, inputs, 0);
  attention.forward(memory.forward_args({}));
  attention.backward(memory.backward_args({}));
  return {memory.o.values(), memory.lse.values(), memory.dq.values(), memory.dk.values(), memory.dv.values()};
}

/// Random sizes and layouts, without a program.
AttentionProblem random_sizes(std::uint64_t seed) {
  AttentionProblem problem = checking::random_problem(seed).problem;
  problem.program = Program();
  problem.operands.clear();
  problem.dtype = DType::kF32;
  problem.backward = problem.stats = true;
  return problem;
}

double distance(const std::vector<double>& x, const std::vector<double>& y) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += (x[i] - y[i]) * (x[i] - y[i]);
  return std::sqrt(sum);
}

double norm(const std::vector<double>& x) { return distance(x, std::vector<double>(x.size())); }

class Properties : public ::testing::TestWithParam<std::string> {};

TEST_P(Properties, IdentityIsPlainAttention) {
  for (int number = 0; number < 30; ++number) {
    const AttentionProblem problem = random_sizes(test::test_seed() + static_cast<std::uint64_t>(number));
    SCOPED_TRACE(to_json(problem));
    const ProblemInputs inputs = random_inputs(problem, {static_cast<std::uint64_t>(number), {}});
    const checking::CheckMemory memory(problem, inputs, 0);
    const test::DenseResult expected = test::dense_attention(
        problem, {memory.q.values(), memory.k.values(), memory.v.values(), memory.d_o.values()}, {});
    const Outputs found = run(GetParam(), problem, inputs);
    // Scores of 10 and their exponentials lose a few dozen roundings in float32. The products of a single key's
    // softmax, whose gradient is zero, lose some of the factors.
    const double rounding = 200 * 0x1p-24;
    EXPECT_LE(distance(found.o, expected.o), rounding * norm(expected.o));
    EXPECT_LE(distance(found.lse, expected.lse), rounding * norm(expected.lse));
    EXPECT_LE(distance(found.dv, expected.dv), rounding * norm(expected.dv));
    const double factors = norm(expected.dv) * norm(expected.o);
    EXPECT_LE(distance(found.dq, expected.dq), rounding * (norm(expected.dq) + factors));
    EXPECT_LE(distance(found.dk, expected.dk), rounding * (norm(expected.dk) + factors));
  }
}

TEST_P(Properties, MasksByKeepEqualMasksByMinusInfinity) {
  for (const std::string keep : {"kv_idx <= q_idx", "abs(q_idx - kv_idx) < 9", "(q_idx + kv_idx) % 3 != 1",
                                 "(kv_idx < 20) | (kv_idx <= q_idx)", "kv_idx > q_idx + 60"}) {
    for (int number = 0; number < 6; ++number) {
      AttentionProblem by_keep = random_sizes(test::test_seed() + static_cast<std::uint64_t>(number));
      AttentionProblem by_infinity = by_keep;
      by_keep.program = Program::parse("value = 4.0 * tanh(score / 4.0)\nkeep = " + keep);
      by_infinity.program = Program::parse("value = select(" + keep + ", 4.0 * tanh(score / 4.0), -inf)");
      const ProblemInputs inputs = random_inputs(by_keep);
      const Outputs x = run(GetParam(), by_keep, inputs);
      const Outputs y = run(GetParam(), by_infinity, inputs);
      EXPECT_EQ(x.o, y.o) << keep;
      EXPECT_EQ(x.lse, y.lse) << keep;
      EXPECT_EQ(x.dq, y.dq) << keep;
      EXPECT_EQ(x.dk, y.dk) << keep;
      EXPECT_EQ(x.dv, y.dv) << keep;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Properties, ::testing::ValuesIn(all_backends()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace scoremod
