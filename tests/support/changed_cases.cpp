// Cases at other lengths, and their inputs with infinities and NaN.

#include <limits>

#include "base/element.hpp"
#include "problem/tensor_view.hpp"
#include "support/attention_kernels_cases.hpp"

namespace scoremod::test {

checking::CheckCase with_lengths(checking::CheckCase test, std::int64_t seq_q, std::int64_t seq_kv) {
  AttentionProblem& problem = test.problem;
  problem.seq_q = seq_q;
  problem.seq_kv = seq_kv;
  for (std::size_t i = 0; i < problem.operands.size(); ++i)
    problem.operands[i] = problem::default_spec(problem, problem.program.operands()[i]);
  return test;
}

ProblemInputs poisoned_inputs(const AttentionProblem& problem, std::uint64_t seed) {
  RandomInputOptions options;
  options.seed = seed;
  ProblemInputs inputs = random_inputs(problem, options);
  const auto poison = [&](std::vector<std::byte>& bytes, problem::TensorRole role, std::int64_t row, double value) {
    const problem::TensorShape shape = problem::memory_shape_of(problem, role);
    const Strides strides = problem::strides_of(problem, role);
    const std::int64_t first = (shape.heads - 1) * strides.head + row % shape.sequence * strides.sequence;
    for (std::int64_t d = 0; d < shape.dim; d += 3)
      store_element(bytes.data(), problem::dtype_of(problem, role), first + d * strides.dim, value);
  };
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  poison(inputs.k, problem::TensorRole::kK, 50, nan);
  poison(inputs.v, problem::TensorRole::kV, 61, nan);
  poison(inputs.v, problem::TensorRole::kV, 33, infinity);
  poison(inputs.q, problem::TensorRole::kQ, 21, nan);
  if (problem.backward) poison(inputs.d_o, problem::TensorRole::kDO, 10, nan);
  return inputs;
}

}  // namespace scoremod::test
