#include "check/score_deviation.hpp"

#include <cmath>

#include "backend/reference/dense_tensor.hpp"
#include "backend/reference/interpreter.hpp"
#include "problem/bound_scale.hpp"

namespace scoremod::checking {

namespace reference = backend::reference;
using problem::TensorRole;

double score_deviation(const AttentionProblem& problem, const reference::InputTensors& inputs,
                       const backend::CallParameters& parameters) {
  const auto q = reference::load_dense<double>(problem, TensorRole::kQ, inputs.q, inputs.operands);
  const auto k = reference::load_dense<double>(problem, TensorRole::kK, inputs.k, inputs.operands);
  const auto operands = reference::view_operands(problem, inputs.operands);
  const Program bound = problem::with_scale_as_constant(problem).program;
  reference::Interpreter<double> program(bound, operands, parameters.offsets);
  double squares = 0;
  std::int64_t count = 0;
  reference::for_each_row(problem, {}, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    const double* q_row = q.data() + ((b * problem.heads_q + h) * problem.seq_q + i) * problem.dim_qk;
    const std::int64_t kv_head = b * problem.heads_kv + h / (problem.heads_q / problem.heads_kv);
    // Welford's update: a mean of -300 would cancel most digits of a sum of squares.
    double mean = 0;
    std::int64_t kept = 0;
    for (std::int64_t j = 0; j < problem.seq_kv; ++j) {
      const double* k_row = k.data() + (kv_head * problem.seq_kv + j) * problem.dim_qk;
      double score = 0;
      for (std::int64_t d = 0; d < problem.dim_qk; ++d) score += q_row[d] * k_row[d];
      program.evaluate({b, h, i, j}, parameters.scale * score);
      if (!program.keeps()) continue;
      const double difference = program.value() - mean;
      mean += difference / static_cast<double>(++kept);
      squares += difference * (program.value() - mean);
    }
    count += kept;
  });
  return count == 0 ? 0 : std::sqrt(squares / static_cast<double>(count));
}

}  // namespace scoremod::checking
