#include "compiler/work_estimate.hpp"

#include <algorithm>

#include "compiler/pipeline.hpp"
#include "ir/op_table.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::compiler {
namespace {

int count_ops(const Program& program) {
  const auto is_op = [](const Node& node) { return ir::info(node.op).signature != ir::Signature::kLeaf; };
  return static_cast<int>(std::ranges::count_if(program.nodes(), is_op));
}

/// The constant length of a prefix, when the mask is that alone.
std::optional<std::int64_t> constant_prefix(const masks::MaskClass& mask) {
  if (mask.kind != masks::MaskKind::kPrefix || mask.band || mask.terms.size() != 1) return std::nullopt;
  const masks::MaskBound& bound = mask.terms.front().bound;
  return bound.node == kNoNode ? std::optional(bound.offset) : std::nullopt;
}

/// kv < prefix or kv <= q: the columns of the prefix, and of the others those on or below the diagonal.
std::int64_t pairs_in_prefix(std::int64_t prefix, std::int64_t seq_q, std::int64_t seq_kv) {
  const std::int64_t columns = std::clamp<std::int64_t>(prefix, 0, seq_kv);
  return seq_q * columns + pairs_up_to(seq_q, seq_kv, 0) - pairs_up_to(seq_q, columns, 0);
}

/// Pairs of one batch and head, and whether the mask keeps exactly these.
struct Pairs {
  std::int64_t count = 0;
  bool exact = true;
};

Pairs count_pairs(const masks::MaskClass& mask, std::int64_t seq_q, std::int64_t seq_kv) {
  if (mask.kind == masks::MaskKind::kEmpty) return {0, true};
  if (const auto prefix = constant_prefix(mask)) return {pairs_in_prefix(*prefix, seq_q, seq_kv), true};
  return {pairs_in_band(mask.band, seq_q, seq_kv), mask.terms.empty()};
}

double gradient_bytes(const AttentionProblem& problem) {
  double bytes = 0;
  for (const std::uint32_t operand : problem::operands_with_gradient(problem)) {
    bytes += static_cast<double>(problem::bytes_of(problem::spec_of(problem, operand)));
  }
  return bytes;
}

/// The bytes that each direction reads and writes.
void count_bytes(const AttentionProblem& problem, WorkEstimate& work) {
  using problem::TensorRole;
  const auto bytes = [&](TensorRole role) { return static_cast<double>(problem::bytes_of(problem, role)); };
  const double q_k_v = bytes(TensorRole::kQ) + bytes(TensorRole::kK) + bytes(TensorRole::kV);
  const double o = bytes(TensorRole::kO);
  const double lse = static_cast<double>(problem.batch * problem.heads_q * problem.seq_q) * sizeof(float);
  double operands = 0;
  for (const OperandSpec& spec : problem.operands) operands += static_cast<double>(problem::bytes_of(spec));
  work.forward_bytes = q_k_v + operands + o + (problem.stats || problem.backward ? lse : 0);
  if (problem.backward) work.backward_bytes = 2 * q_k_v + 2 * o + lse + operands + gradient_bytes(problem);
}

}  // namespace

std::int64_t pairs_up_to(std::int64_t seq_q, std::int64_t seq_kv, std::int64_t offset) {
  // Row q has clamp(q + first, 0, seq_kv) pairs: none before row `begin`, one more each row, all of them from row
  // `end`.
  const std::int64_t first = std::clamp(offset, -seq_q - 1, seq_kv) + 1;
  const std::int64_t begin = std::clamp<std::int64_t>(-first, 0, seq_q);
  const std::int64_t end = std::clamp<std::int64_t>(seq_kv - first, 0, seq_q);
  const std::int64_t growing = (end - begin) * (begin + first + end - 1 + first) / 2;
  return growing + (seq_q - end) * seq_kv;
}

std::int64_t pairs_in_band(const std::optional<masks::Band>& band, std::int64_t seq_q, std::int64_t seq_kv) {
  if (!band) return seq_q * seq_kv;
  const masks::Band aligned = masks::top_left(*band, seq_q, seq_kv);
  const std::int64_t below = aligned.right ? pairs_up_to(seq_q, seq_kv, *aligned.right) : seq_q * seq_kv;
  const std::int64_t outside = aligned.left ? pairs_up_to(seq_q, seq_kv, -*aligned.left - 1) : 0;
  return std::max<std::int64_t>(below - outside, 0);
}

WorkEstimate work_of(const CompiledProblem& compiled) {
  const AttentionProblem& problem = compiled.problem;
  const Pairs pairs = count_pairs(compiled.forward.mask, problem.seq_q, problem.seq_kv);
  const double rows = static_cast<double>(problem.batch) * static_cast<double>(problem.heads_q);
  const auto dim_qk = static_cast<double>(problem.dim_qk);
  const auto dim_v = static_cast<double>(problem.dim_v);
  WorkEstimate work;
  work.pairs = rows * static_cast<double>(pairs.count);
  work.dense_pairs = rows * static_cast<double>(problem.seq_q) * static_cast<double>(problem.seq_kv);
  work.exact = pairs.exact;
  work.forward_flops = work.pairs * (2 * dim_qk + 2 * dim_v);
  work.backward_flops = problem.backward ? work.pairs * (6 * dim_qk + 4 * dim_v) : 0;
  count_bytes(problem, work);
  work.program_ops = count_ops(compiled.forward.program);
  work.derivative_ops = compiled.backward ? count_ops(compiled.backward->program) : 0;
  return work;
}

}  // namespace scoremod::compiler

namespace scoremod {

WorkEstimate estimate_work(const AttentionProblem& problem) { return compiler::work_of(compiler::compile(problem)); }

}  // namespace scoremod
