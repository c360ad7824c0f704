#include "backend/kernels/operand_gradients/operand_source.hpp"

#include <algorithm>

#include "analysis/differences.hpp"
#include "backend/kernels/operand_gradients/operand_text.hpp"
#include "backend/kernels/shared/tiled_source.hpp"
#include "base/fail.hpp"
#include "compiler/operand_reduction.hpp"
#include "problem/implied_operands.hpp"

namespace scoremod::backend::kernels {
namespace {

/// Whether a table is read once, at indices that are the same for all pairs of a query and a key as far apart.
bool follows_from_differences(const Program& derivative, const compiler::OperandReduction& reduction) {
  if (reduction.roots.size() != 1) return false;
  const std::vector<bool> of_differences = analysis::of_differences(derivative);
  return std::ranges::all_of(derivative.roots()[reduction.roots.front()].indices,
                             [&](NodeId index) { return index == kNoNode || of_differences[index]; });
}

/// By kernels that do nothing else.
OperandSum sum_of(const AttentionProblem& problem, const compiler::OperandReduction& reduction) {
  if (reduction.roots.empty()) return OperandSum::kNothing;
  if (reduction.scattered) return OperandSum::kTable;
  const auto varies = [&](Axis axis) {
    return reduction.has(axis) && reduction.extents[static_cast<std::size_t>(axis)] > 1;
  };
  if (!varies(Axis::kQuery)) return varies(Axis::kKey) ? OperandSum::kKeys : OperandSum::kTotal;
  if (!varies(Axis::kKey)) return OperandSum::kQueries;
  const bool once = reduction.extents[0] == problem.batch && reduction.extents[1] == problem.heads_q;
  return once ? OperandSum::kElement : OperandSum::kShared;
}

/// The kind of sum beside dq, dk and dv, if there is one.
std::optional<OperandSum> sum_beside(OperandSum apart, const Program& derivative,
                                     const compiler::OperandReduction& reduction) {
  if (apart == OperandSum::kShared || apart == OperandSum::kNothing) return std::nullopt;
  if (apart != OperandSum::kTable) return apart;
  return follows_from_differences(derivative, reduction) ? std::optional(OperandSum::kDifference) : std::nullopt;
}

}  // namespace

std::vector<OperandTarget> operand_targets(const compiler::CompiledProblem& problem,
                                           std::span<const std::uint32_t> operands, Gains gains) {
  const auto sink = problem::sink_operand(problem.problem);
  std::vector<OperandTarget> targets;
  for (const std::uint32_t operand : operands) {
    std::optional<OperandSum> sum = OperandSum::kSink;
    if (operand != sink) {
      const compiler::OperandReduction& reduction = reduction_of(problem.backward->reductions, operand);
      sum = sum_of(problem.problem, reduction);
      if (gains == Gains::kBeside) sum = sum_beside(*sum, problem.backward->program, reduction);
    }
    if (!sum) return {};
    targets.push_back({operand, *sum});
  }
  std::ranges::stable_sort(targets, {}, &OperandTarget::sum);
  return targets;
}

std::int64_t table_entries(const compiler::CompiledProblem& problem, std::span<const OperandTarget> targets) {
  std::int64_t entries = 0;
  for (const OperandTarget& target : targets) {
    if (target.sum == OperandSum::kTable)
      entries += reduction_of(problem.backward->reductions, target.operand).entries();
  }
  return entries;
}

bool has_differences(std::span<const OperandTarget> targets) {
  return std::ranges::find(targets, OperandSum::kDifference, &OperandTarget::sum) != targets.end();
}

std::string clear_kernel(const OperandTarget& target) { return concat("attention_operand_clear_", target.operand); }
std::string diagonals_kernel(const OperandTarget& target) {
  return concat("attention_operand_diagonals_", target.operand);
}
std::string total_kernel(const OperandTarget& target) { return concat("attention_operand_total_", target.operand); }

KernelSource operand_source(const compiler::CompiledProblem& problem, std::span<const OperandTarget> targets,
                            const TileShape& shape) {
  KernelSource source;
  const OperandText text(problem, targets);
  fill_attention(source.holes, problem, Direction::kBackward, shape, text, Gains::kApart);
  text.fill_tile_sums(source.holes);
  text.fill_totals(source.holes);
  Module files{{"backend/kernels/shared/row_terms.cuh", {"attention_backward_rows"}},
               {"backend/kernels/operand_gradients/tile_sums.cuh"},
               {kTotalsFile}};
  const Module states = block_mask_files(problem, Direction::kBackward);
  files.insert(files.end(), states.begin(), states.end());
  source.modules.push_back(std::move(files));
  return source;
}

}  // namespace scoremod::backend::kernels
