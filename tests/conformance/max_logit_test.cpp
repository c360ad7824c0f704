// The largest score of each row, against the dense formula, which knows nothing of programs. The oracle is compared to
// its own rounding, the other backends by check(). Planted faults must be found.

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/attention.hpp"
#include "scoremod/problem_buffers.hpp"

#include "check/check_subject.hpp"
#include "compiler/pipeline.hpp"
#include "conformance/dense_formula.hpp"
#include "conformance/host_calls.hpp"
#include "support/check_report.hpp"
#include "support/faulty_subject.hpp"
#include "support/refusal.hpp"

namespace scoremod {
namespace {

using Index = std::int64_t;
using test::DenseModifier;

TEST(MaxLogit, IsTheLargestKeptModifiedScore) {
  for (const Sink sink : {Sink::kNone, Sink::kOffByOne}) {
    AttentionProblem problem = test::formula_problem();
    problem.program = Program::parse("value = score - 1.5\nkeep = kv_idx < q_idx");
    problem.sink = sink;
    problem.max_logit = true;
    const ProblemInputs inputs = random_inputs(problem);
    DenseModifier modifier;
    modifier.value = [](double s, Index, Index, Index, Index) { return s - 1.5; };
    modifier.keep = [](Index, Index, Index q, Index kv) { return kv < q; };
    if (sink == Sink::kOffByOne) modifier.sink = [](Index) { return 0.0; };
    test::DenseResult expected = test::formula_result(problem, inputs, modifier);
    expected.d_sink.clear();
    const ProblemBuffers found = test::run_calls(problem, inputs, "reference");
    ASSERT_EQ(test::output_values(found, "max_logit").size(), expected.max_logit.size());
    test::expect_formula(found, expected);
    EXPECT_TRUE(std::isinf(test::output_values(found, "max_logit")[0]));
    test::expect_backends_conform(problem, inputs);
  }
}

TEST(MaxLogit, MayBeInfinityOrNan) {
  for (const char* value :
       {"log(score)", "1.0 / f32(kv_idx - 2)", "score + 1.0 / f32(kv_idx - 2) + log(f32(3 - kv_idx))",
        "select(kv_idx == 2, 0.0 / 0.0, score)"}) {
    AttentionProblem problem = test::formula_problem();
    problem.program = Program::parse(std::string("value = ") + value);
    problem.max_logit = true;
    problem.backward = false;
    SCOPED_TRACE(value);
    test::expect_backends_conform(problem, random_inputs(problem));
  }
}

TEST(MaxLogit, IsGivenWhereItIsAskedFor) {
  AttentionProblem problem = test::formula_problem();
  const ProblemInputs inputs = random_inputs(problem);
  std::vector<float> rows(60);
  ProblemBuffers buffers(problem, buffers_of(inputs));
  ForwardArgs args = buffers.forward();
  args.max_logit = {rows.data(), rows.size() * sizeof(float)};
  test::expect_refusal("'max_logit': expected no buffer in a problem that was compiled without max_logit, found one",
                       [&] { Attention::compile(problem).forward(args); });
  problem.max_logit = true;
  args.max_logit = {};
  test::expect_refusal("'max_logit' is missing", [&] { Attention::compile(problem).forward(args); });
  args.max_logit = {rows.data(), rows.size() * sizeof(float) - 1};
  test::expect_refusal("'max_logit' is too small", [&] { Attention::compile(problem).forward(args); });
}

TEST(MaxLogitNegativeControl, AnotherKeysIsFound) {
  AttentionProblem problem = test::formula_problem();
  problem.max_logit = true;
  const compiler::CompiledProblem right = compiler::compile(problem);
  const ProblemInputs inputs = random_inputs(problem);
  const checking::Subject subject = test::reference_subject(right);
  EXPECT_TRUE(checking::check_subject(right, subject, inputs, {}).passed());
  const auto as_lse = [](const ForwardArgs& args) {
    std::copy_n(static_cast<const float*>(args.lse.data), 60, static_cast<float*>(args.max_logit.data));
  };
  const CheckReport report = checking::check_subject(right, test::after_forward(subject, as_lse), inputs, {});
  EXPECT_FALSE(test::output(report, "max_logit").passed());
}

}  // namespace
}  // namespace scoremod
