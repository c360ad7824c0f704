// Sinks, against the dense formula, which knows nothing of programs: the oracle to its own rounding, the other backends
// by check(). Faults planted in it must be found.

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/problem_buffers.hpp"

#include "base/concat.hpp"
#include "base/element.hpp"
#include "check/check_subject.hpp"
#include "compiler/pipeline.hpp"
#include "conformance/dense_formula.hpp"
#include "conformance/host_calls.hpp"
#include "problem/strided_tensor.hpp"
#include "support/faulty_subject.hpp"

namespace scoremod {
namespace {

using Index = std::int64_t;
using test::DenseModifier;

const std::vector<double> kSinks{0.5, -3, 6, 0};

TEST(Sink, IsInTheSumsOfItsHead) {
  for (const Sink sink : {Sink::kOffByOne, Sink::kLearned}) {
    AttentionProblem problem = test::formula_problem();
    problem.sink = sink;
    problem.program = Program::parse("value = 2.0 * score\nkeep = kv_idx < q_idx");  // row 0 has no key
    ProblemInputs inputs = random_inputs(problem);
    DenseModifier modifier;
    modifier.value = [](double s, Index, Index, Index, Index) { return 2 * s; };
    modifier.slope = [](double, Index, Index, Index, Index) { return 2.0; };
    modifier.keep = [](Index, Index, Index q, Index kv) { return kv < q; };
    modifier.sink = [&](Index h) { return sink == Sink::kLearned ? kSinks[static_cast<std::size_t>(h)] : 0.0; };
    test::set_operand(problem, inputs, "sink", kSinks);
    test::DenseResult expected = test::formula_result(problem, inputs, modifier);
    if (sink == Sink::kOffByOne) expected.d_sink.clear();
    const ProblemBuffers found = test::run_calls(problem, inputs, "reference");
    test::expect_formula(found, expected);
    EXPECT_EQ(test::output_values(found, "lse")[0], sink == Sink::kLearned ? kSinks[0] : 0);
    EXPECT_EQ(test::output_values(found, "o")[0], 0);
    test::expect_backends_conform(problem, inputs);
  }
}

/// Far above and below the scores, -inf, which is none, inf, which takes all, and NaN, which reaches every row.
TEST(Sink, MayBeAnyNumber) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double value : {300.0, -300.0, 1e9, -kInfinity, kInfinity, std::nan("")}) {
    for (const char* program : {"value = score", "value = score - 500.0", "value = score\nkeep = kv_idx + 3 < q_idx"}) {
      AttentionProblem problem = test::formula_problem();
      problem.sink = Sink::kLearned;
      problem.program = Program::parse(program);
      ProblemInputs inputs = random_inputs(problem);
      test::set_operand(problem, inputs, "sink", {value, 0.25, value, value});
      SCOPED_TRACE(concat(value, " ", program));
      test::expect_backends_conform(problem, inputs);
    }
  }
}

TEST(Sink, OfMinusInfinityIsNone) {
  AttentionProblem problem = test::formula_problem();
  problem.program = Program::parse("value = score\nkeep = kv_idx < q_idx");
  const ProblemBuffers without = test::run_calls(problem, random_inputs(problem), "cpu");
  problem.sink = Sink::kLearned;
  ProblemInputs inputs = random_inputs(problem);
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  test::set_operand(problem, inputs, "sink", {kNone, kNone, kNone, kNone});
  const ProblemBuffers with = test::run_calls(problem, inputs, "cpu");
  for (const char* name : {"o", "lse", "dq", "dk", "dv"})
    EXPECT_EQ(test::output_values(with, name), test::output_values(without, name)) << name;
  EXPECT_EQ(test::output_values(with, "d_sink"), (std::vector<double>{0, 0, 0, 0}));
}

/// Its rows have no key that counts, whatever they hold: here NaN. The other heads are unchanged.
TEST(Sink, OfInfinityTakesAllWeight) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr Index kHead = 1;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    AttentionProblem problem = test::formula_problem();
    problem.dtype = dtype;
    problem.sink = Sink::kLearned;
    problem.max_logit = true;
    problem.program = Program::parse("value = 2.0 * score\nkeep = kv_idx < q_idx");
    ProblemInputs inputs = random_inputs(problem);
    test::set_operand(problem, inputs, "sink", {0.5, kInfinity, 6, 0});
    const problem::StridedTensor q = problem::tensor_of("q", problem, problem::TensorRole::kQ);
    const Index of_head = problem.seq_q * problem.dim_qk;
    q.for_each_offset([&](Index number, Index offset) {
      if (number / of_head % problem.heads_q == kHead) store_element(inputs.q.data(), dtype, offset, std::nan(""));
    });
    for (const std::string backend : {"reference", "cpu"}) {
      SCOPED_TRACE(concat(backend, " ", to_string(dtype)));
      const ProblemBuffers found = test::run_calls(problem, inputs, backend);
      const auto expect_rows = [&](const char* name, Index width, double expected) {
        const std::vector<double> values = test::output_values(found, name);
        for (std::size_t i = 0; i < values.size(); ++i) {
          const bool is_taken = static_cast<Index>(i) / (problem.seq_q * width) % problem.heads_q == kHead;
          const bool right = is_taken ? values[i] == expected : !std::isnan(values[i]) && values[i] != kInfinity;
          ASSERT_TRUE(right) << name << " " << i << ": " << values[i];
        }
      };
      expect_rows("lse", 1, kInfinity);
      expect_rows("o", problem.dim_v, 0);
      expect_rows("dq", problem.dim_qk, 0);
      for (const char* name : {"dk", "dv", "d_sink"})
        for (const double value : test::output_values(found, name)) ASSERT_TRUE(std::isfinite(value)) << name;
      EXPECT_EQ(test::output_values(found, "d_sink")[kHead], 0);
      EXPECT_NE(test::output_values(found, "d_sink")[0], 0);
    }
    test::expect_backends_conform(problem, inputs);
  }
}

TEST(SinkNegativeControl, AnIgnoredSinkIsFound) {
  AttentionProblem problem = test::formula_problem();
  problem.sink = Sink::kLearned;
  const compiler::CompiledProblem right = compiler::compile(problem);
  compiler::CompiledProblem faulty = right;
  faulty.problem.sink = Sink::kNone;
  ProblemInputs inputs = random_inputs(problem);
  const auto wrong = [&](const compiler::CompiledProblem& subject) {
    std::vector<std::string> names;
    for (const OutputCheck& output :
         checking::check_subject(right, test::reference_subject(subject), inputs, {}).outputs) {
      if (!output.passed()) names.push_back(output.name);
    }
    return names;
  };
  EXPECT_EQ(wrong(right), std::vector<std::string>{});
  EXPECT_EQ(wrong(faulty), (std::vector<std::string>{"o", "lse", "dq", "dk", "dv", "d_sink"}));
  // Off by one for a learned one.
  faulty.problem.sink = Sink::kOffByOne;
  EXPECT_EQ(wrong(faulty), (std::vector<std::string>{"o", "lse", "dq", "dk", "dv", "d_sink"}));
}

}  // namespace
}  // namespace scoremod
