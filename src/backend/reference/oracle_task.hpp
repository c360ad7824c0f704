#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "backend/reference/dense_tensor.hpp"
#include "backend/reference/naive_attention.hpp"
#include "problem/call_dropout.hpp"

namespace scoremod::backend::reference {

/// One call of the fast oracle: the state that its threads share.
struct OracleTask {
  OracleTask(const compiler::CompiledProblem& compiled_problem, const InputTensors& inputs, const CallParameters& call)
      : compiled(compiled_problem),
        problem(compiled.problem),
        parameters(call),
        q(load_dense<double>(problem, problem::TensorRole::kQ, inputs.q, inputs.operands)),
        k(load_dense<double>(problem, problem::TensorRole::kK, inputs.k, inputs.operands)),
        v(load_dense<double>(problem, problem::TensorRole::kV, inputs.v, inputs.operands)),
        operands(view_operands(problem, inputs.operands)),
        scale_o(problem::StoredUnit(problem, problem::TensorRole::kO).scale(inputs.operands)),
        dtype_o(problem::dtype_of(problem, problem::TensorRole::kO)),
        dropout(problem, call.dropout_seed, call.dropout_offset, call.offsets, inputs.operands) {}

  std::size_t query_row(std::int64_t b, std::int64_t h, std::int64_t i) const {
    return static_cast<std::size_t>((b * problem.heads_q + h) * problem.seq_q + i);
  }

  const compiler::CompiledProblem& compiled;
  const AttentionProblem& problem;
  const CallParameters& parameters;
  const std::vector<double> q, k, v;
  const std::vector<OperandView> operands;
  const double scale_o;
  const DType dtype_o;
  const problem::CallDropout dropout;
  std::vector<double> d_o;            ///< empty for a forward
  std::optional<Program> derivative;  ///< likewise nothing
  ForwardResult<double> forward;      ///< of a forward
  BackwardResult<double> backward;    ///< of a backward
  std::mutex mutex;                   ///< of the operands' gradients, the largest output and the progress
  std::atomic<std::int64_t> next_unit{0}, rows_done{0};
};

}  // namespace scoremod::backend::reference
