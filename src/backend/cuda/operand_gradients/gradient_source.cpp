#include "backend/cuda/operand_gradients/gradient_source.hpp"

#include "backend/cuda/operand_gradients/gradient_text.hpp"
#include "backend/cuda/operand_gradients/gradients_kernel.hpp"
#include "backend/cuda/text/exact_sum.hpp"
#include "backend/cuda/text/kernel_text.hpp"
#include "backend/cuda/text/program_source.hpp"
#include "backend/few_rows.hpp"
#include "backend/program_structure.hpp"
#include "base/canonical_bytes.hpp"
#include "base/fail.hpp"
#include "problem/row_addressing.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::cuda {
namespace {

std::string wide(std::int64_t value) { return concat(value, "LL"); }

std::string delta_kernel(const AttentionProblem& problem) {
  const problem::RowAddressing o(problem, problem::TensorRole::kO), d_o(problem, problem::TensorRole::kDO);
  const std::int64_t rows_of_batch = problem.heads_q * problem.seq_q;
  const std::string batch = concat("row / ", wide(rows_of_batch));
  const std::string head = concat("row / ", wide(problem.seq_q), " % ", wide(problem.heads_q));
  const std::string position = concat("row % ", wide(problem.seq_q));
  return fill(file_text("backend/cuda/operand_gradients/row_deltas.cuh"),
              {{"rows_of_block", wide(kGradientThreads / 32)},
               {"rows", wide(problem.batch * rows_of_batch)},
               {"first", o.row_expression(batch, head, position)},
               {"upstream", d_o.row_expression(batch, head, position)},
               {"upstream_stride", wide(d_o.element_step())},
               {"dim", problem.dim_v},
               {"load", concat("load_", dtype_name(problem.dtype))},
               {"dim_stride", wide(o.element_step())}});
}

std::string store_kernel(const AttentionProblem& problem, const GradientTarget& target, std::size_t number) {
  const OperandSpec& spec = problem::spec_of(problem, target.operand);
  const bool table = problem.program.operands()[target.operand].is_table();
  const bool block = target.has(Axis::kQuery) && target.has(Axis::kKey);
  std::string block_indices, entry_indices;
  std::vector<std::string> indices;
  if (block) {
    block_indices = fill(part(file_text("backend/cuda/operand_gradients/store_gradient.cuh"), "block_indices"),
                         {{"heads", target.extents[1]}});
    indices = own_indices(target);
  } else {
    std::string decode;
    for (std::size_t d = kAxisCount; d-- > 0;) {
      if (table ? d >= spec.shape.size() : !target.axes[d]) continue;
      const std::string name = concat("index_", d);
      decode += fill(part(file_text("backend/cuda/operand_gradients/store_gradient.cuh"), "index"),
                     {{"name", name}, {"extent", target.extents[d]}});
      indices.insert(indices.begin(), name);
    }
    entry_indices = fill(part(file_text("backend/cuda/operand_gradients/store_gradient.cuh"), "entry_indices"),
                         {{"index", decode}});
  }
  return fill(file_text("backend/cuda/operand_gradients/store_gradient.cuh"),
              {{"name", concat("store_", number)},
               {"sum_type", sum_type(target)},
               {"entries",
                block ? concat(target.extents[0] * target.extents[1], "LL * rows * columns") : wide(target.entries())},
               {"block_indices", block_indices},
               {"entry_indices", entry_indices},
               {"store", concat("store_", dtype_name(spec.dtype))},
               {"offset", entry_offset(problem, target.operand, indices)},
               {"sum", block ? block_entry(target, "c") : "i"}});
}

/// Writes the facts beside the program that the pass branches on.
void write_branches(CanonicalWriter& out, const AttentionProblem& p) {
  using problem::TensorRole;
  for (const TensorRole role : {TensorRole::kQ, TensorRole::kK, TensorRole::kV, TensorRole::kO, TensorRole::kDO})
    out.integer(static_cast<std::int64_t>(problem::dtype_of(p, role)));
  out.boolean(p.heads_q != p.heads_kv).boolean(p.index_offsets).boolean(p.given_deltas).boolean(p.deterministic);
  out.boolean(p.sink != Sink::kNone).boolean(has_weighted_deltas(p));
  for (std::uint32_t i = 0; i < p.program.operands().size(); ++i) {
    const OperandSpec& spec = problem::spec_of(p, i);
    out.integer(static_cast<std::int64_t>(spec.dtype)).list(spec.shape.size());
    // A dimension with stride 0 is read and written by other code.
    for (std::size_t d = 0; d < spec.shape.size(); ++d) out.boolean(!spec.strides.empty() && spec.strides[d] == 0);
  }
}

void write_target(CanonicalWriter& out, const GradientTarget& target, bool in_shared_memory) {
  out.integer(target.operand).integer(static_cast<std::int64_t>(target.sum));
  out.boolean(target.exact).boolean(in_shared_memory).boolean(target.scattered);
  for (const bool axis : target.axes) out.boolean(axis);
}

}  // namespace

bool has_weighted_deltas(const AttentionProblem& problem) {
  return has_few_rows(problem) && problem.sink == Sink::kNone && !problem.given_deltas;
}

GradientSource gradient_source(const compiler::CompiledProblem& problem, std::span<const GradientTarget> targets) {
  GradientSource source = gradients_kernel(problem, targets);
  std::string text =
      concat(file_text("backend/cuda/text/program_prelude.cuh"), file_text("backend/cuda/text/exact_sum.cuh"),
             file_text("backend/cuda/operand_gradients/gradient_prelude.cuh"),
             has_weighted_deltas(problem.problem) ? "" : delta_kernel(problem.problem), source.text);
  for (std::size_t i = 0; i < targets.size(); ++i) text += store_kernel(problem.problem, targets[i], i);
  source.text = std::move(text);
  return source;
}

Bytes structure_of_gradients(const compiler::CompiledProblem& problem, std::span<const GradientTarget> targets) {
  CanonicalWriter out;
  for (const std::string_view text :
       {file_text("backend/cuda/text/program_prelude.cuh"), file_text("backend/cuda/text/exact_sum.cuh"),
        file_text("backend/cuda/operand_gradients/gradient_prelude.cuh"),
        file_text("backend/cuda/operand_gradients/row_deltas.cuh"),
        file_text("backend/cuda/operand_gradients/weighted_deltas.cuh"),
        file_text("backend/cuda/operand_gradients/gradient_sums.cuh"),
        file_text("backend/cuda/operand_gradients/store_gradient.cuh")})
    out.text(text);
  write_structure(out, problem.backward->program);
  write_structure(out, problem.backward->mask);
  write_branches(out, problem.problem);
  const std::vector<bool> shared = shared_tables(targets);
  out.list(targets.size());
  for (std::size_t i = 0; i < targets.size(); ++i) write_target(out, targets[i], shared[i]);
  return out.written();
}

}  // namespace scoremod::backend::cuda
