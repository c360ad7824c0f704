// The op surrogate, against the dense formula, which has a value and a slope of its own.

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/problem_buffers.hpp"

#include "base/element.hpp"
#include "conformance/dense_formula.hpp"
#include "conformance/host_calls.hpp"

namespace scoremod {
namespace {

using Index = std::int64_t;
using test::DenseModifier;

TEST(Surrogate, IsTheValueForwardAndTheOtherBackward) {
  AttentionProblem problem = test::formula_problem();
  problem.program = Program::parse(
      "operand x: f32 [h]\nvalue = surrogate(round(score * 2.0) * x, score * 3.0)\nkeep = kv_idx < q_idx + 3");
  problem.operands = {{"x", DType::kF32, {problem.heads_q}, {}}};
  const ProblemInputs inputs = random_inputs(problem);
  std::vector<double> x;
  for (Index h = 0; h < problem.heads_q; ++h)
    x.push_back(load_element<double>(inputs.operands[0].bytes.data(), DType::kF32, h));
  DenseModifier modifier;
  modifier.value = [&](double s, Index, Index h, Index, Index) {
    return std::nearbyint(2 * s) * x[static_cast<std::size_t>(h)];
  };
  modifier.slope = [](double, Index, Index, Index, Index) { return 3.0; };
  modifier.keep = [](Index, Index, Index q, Index kv) { return kv < q + 3; };
  const ProblemBuffers found = test::run_calls(problem, inputs, "reference");
  test::expect_formula(found, test::formula_result(problem, inputs, modifier));
  for (const double gradient : test::output_values(found, "d_x")) EXPECT_EQ(gradient, 0);
  test::expect_backends_conform(problem, inputs, {});
}

}  // namespace
}  // namespace scoremod
