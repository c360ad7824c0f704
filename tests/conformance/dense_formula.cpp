#include "conformance/dense_formula.hpp"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "conformance/host_calls.hpp"
#include "problem/strided_tensor.hpp"
#include "support/problem_for.hpp"

namespace scoremod::test {
namespace {

using problem::TensorRole;

void expect_near(const char* name, const std::vector<double>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size()) << name;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (std::isinf(expected[i])) {
      ASSERT_EQ(found[i], expected[i]) << name << " " << i;
      continue;
    }
    // The one rounding of the store, and float64's own rounding in another order.
    ASSERT_NEAR(found[i], expected[i], 0x1p-24 * std::abs(expected[i]) + 1e-12) << name << " " << i;
  }
}

}  // namespace

AttentionProblem formula_problem() {
  AttentionProblem problem = small_problem();
  problem.batch = 3;
  for (TensorLayout* tensor : {&problem.q, &problem.k, &problem.v, &problem.o}) tensor->layout = Layout::kBHSD;
  problem.backward = problem.stats = true;
  return problem;
}

DenseResult formula_result(const AttentionProblem& problem, const ProblemInputs& inputs,
                           const DenseModifier& modifier) {
  const auto read = [&](TensorRole role, const std::vector<std::byte>& bytes) {
    const problem::StridedTensor tensor = problem::tensor_of("", problem, role);
    return to_dense(bytes, problem.dtype, tensor.shape, tensor.strides);
  };
  return dense_attention(problem,
                         {read(TensorRole::kQ, inputs.q), read(TensorRole::kK, inputs.k),
                          read(TensorRole::kV, inputs.v), read(TensorRole::kO, inputs.d_o)},
                         modifier);
}

void expect_formula(const ProblemBuffers& found, const DenseResult& expected) {
  expect_near("o", output_values(found, "o"), expected.o);
  expect_near("lse", output_values(found, "lse"), expected.lse);
  expect_near("dq", output_values(found, "dq"), expected.dq);
  expect_near("dk", output_values(found, "dk"), expected.dk);
  expect_near("dv", output_values(found, "dv"), expected.dv);
  expect_near("d_sink", output_values(found, "d_sink"), expected.d_sink);
  if (const std::vector<double> found_max = output_values(found, "max_logit"); !found_max.empty())
    expect_near("max_logit", found_max, expected.max_logit);
}

}  // namespace scoremod::test
