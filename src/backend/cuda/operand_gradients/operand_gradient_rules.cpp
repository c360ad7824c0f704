// The problems that no pass of its own supports.
#include <limits>

#include "backend/cuda/operand_gradients/operand_gradients.hpp"
#include "backend/cuda/text/program_source.hpp"
#include "backend/unsupported.hpp"
#include "base/fail.hpp"
#include "problem/problem_topics.hpp"
#include "problem/row_addressing.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::cuda {
namespace {

using problem::TensorRole;

std::string stride_reason(const AttentionProblem& problem, TensorRole role) {
  constexpr std::int64_t kMaxStride = std::numeric_limits<std::int32_t>::max();
  const problem::RowAddressing rows(problem, role);
  const problem::TensorShape& shape = rows.shape();
  if (shape.dim > 1 && rows.element_step() != 1) {
    return concat("gradients of operands: expected stride 1 along the head dim of ", problem::to_string(role),
                  ", because cuBLAS takes no other; found ", rows.element_step());
  }
  if (shape.sequence > 1 && rows.row_step() > kMaxStride) {
    return concat("gradients of operands: expected a sequence stride of ", problem::to_string(role), " of at most ",
                  kMaxStride, " elements, found ", rows.row_step());
  }
  return "";
}

}  // namespace

std::vector<UnsupportedReason> OperandGradients::unsupported_reasons(const compiler::CompiledProblem& problem) {
  // Every member is named: a new one does not compile until it is run or refused here. The sum takes o's terms as they
  // are given (given_deltas), and lengths and sinks as the program reads them.
  static_assert(problem::kAllTopics<Sequences, TensorDTypes, TensorLayouts, SoftmaxOptions, OutputOptions,
                                    BackwardOptions, ScoreProgram>);
  const AttentionProblem& p = problem.problem;
  [[maybe_unused]] const auto& [batch, heads_q, heads_kv, seq_q, seq_kv, dim_qk, dim_v, tokens_q, tokens_kv, paged,
                                lengths, index_offsets] = problem::topic<Sequences>(p);
  [[maybe_unused]] const auto& [dtype, dtype_kv, dtype_o, dtype_d_o, dtype_gradients] = problem::topic<TensorDTypes>(p);
  [[maybe_unused]] const auto& [q, k, v, o, d_o, dq, dk, dv] = problem::topic<TensorLayouts>(p);
  [[maybe_unused]] const auto& [scale, sink, dropout, dropout_keys] = problem::topic<SoftmaxOptions>(p);
  [[maybe_unused]] const auto& [stats, max_logit, amax_o] = problem::topic<OutputOptions>(p);
  [[maybe_unused]] const auto& [backward, given_deltas, deterministic, amax_gradients] =
      problem::topic<BackwardOptions>(p);
  [[maybe_unused]] const auto& [program, operands] = problem::topic<ScoreProgram>(p);
  std::vector<UnsupportedReason> reasons;
  if (!problem.backward) fail_bug("the problem was compiled without a derivative");
  object_to_places(p, reasons);
  if (is_float8(dtype) || dtype_kv) {
    reasons.push_back(
        unsupported(Rule::kDtype, concat("gradients of operands: expected q, k and v in f32, f16 or bf16, found ",
                                         to_string(dtype_kv.value_or(dtype)))));
  }
  if (problem.backward->program.nodes().size() > kMaxKernelNodes || p.program.operands().size() > kMaxKernelOperands) {
    reasons.push_back(
        unsupported(Rule::kOperandGradientSize,
                    concat("gradients of operands: expected a derivative of at most ", kMaxKernelNodes, " nodes and ",
                           kMaxKernelOperands, " operands, found ", problem.backward->program.nodes().size(), " and ",
                           p.program.operands().size())));
  }
  if (dropout > 0) reasons.push_back(unsupported(Rule::kDropout, concat("expected no dropout, found ", dropout)));
  for (const TensorRole role : {TensorRole::kQ, TensorRole::kK, TensorRole::kV, TensorRole::kO, TensorRole::kDO}) {
    std::string reason = stride_reason(p, role);
    if (!reason.empty()) reasons.push_back(unsupported(Rule::kOperandGradientStride, std::move(reason)));
  }
  for (std::uint32_t i = 0; i < p.program.operands().size(); ++i) {
    const OperandSpec& spec = problem::spec_of(p, i);
    if (!p.program.operands()[i].is_table() || !spec.has_gradient()) continue;
    std::int64_t entries = 1;
    for (const std::int64_t extent : spec.shape) entries *= extent;
    if (entries > std::numeric_limits<std::int32_t>::max()) {
      reasons.push_back(unsupported(Rule::kOperandGradientSize,
                                    concat("gradients of operands: expected fewer than 2^31 entries of table '",
                                           spec.name, "', found ", entries)));
    }
  }
  return reasons;
}

}  // namespace scoremod::backend::cuda
