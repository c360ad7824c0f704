#include "backend/kernels/operand_gradients/operand_gradients.hpp"

#include <algorithm>
#include <string>

#include "analysis/differences.hpp"
#include "backend/cuda/text/exact_sum.hpp"
#include "backend/kernels/shared/tiled_variant.hpp"
#include "base/fail.hpp"
#include "compiler/operand_reduction.hpp"
#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"

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

/// The kernels that add up partial sums have one thread for an entry, or one warp.
constexpr int kTotalThreads = 128;
constexpr std::int64_t kTotalWarps = 4;

/// The sums of each batch and query head: diagonal_groups() times diagonal_pitch() of shared/query_gradients.cuh.
std::int64_t diagonals_of(const AttentionProblem& p, const TileShape& shape, bool by_columns) {
  const std::int64_t queries = tiles_of(p.seq_q, shape.queries) * shape.queries,
                     keys = tiles_of(p.seq_kv, shape.keys) * shape.keys;
  return by_columns ? keys / device::kDiagonalRows * (queries + device::kDiagonalThreads)
                    : queries / device::kDiagonalRows * (keys + device::kDiagonalThreads);
}

/// Positions of a target's sums, for each batch and query head.
std::int64_t positions_of(const AttentionProblem& p, const OperandTarget& target, const TileShape& shape,
                          bool by_columns) {
  switch (target.sum) {
    case OperandSum::kTotal:
      return by_columns ? tiles_of(p.seq_kv, shape.keys) * shape.warps : tiles_of(p.seq_q, shape.queries);
    case OperandSum::kQueries: return p.seq_q;
    case OperandSum::kKeys: return p.seq_kv;
    case OperandSum::kDifference: return diagonals_of(p, shape, by_columns);
    case OperandSum::kTable:
    case OperandSum::kShared:
    case OperandSum::kElement:
    case OperandSum::kSink:
    case OperandSum::kNothing: return 0;
  }
  return 0;
}

bool has_exact_sums(const OperandTarget& target) {
  return target.sum == OperandSum::kDifference || target.sum == OperandSum::kTable;
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

std::int64_t entries_of(const AttentionProblem& p, std::uint32_t operand) {
  std::int64_t entries = 1;
  for (const std::int64_t extent : problem::spec_of(p, operand).shape) entries *= extent;
  return entries;
}

void add_sums(CallLayout& layout, const AttentionProblem& p, std::span<const OperandTarget> targets,
              const TileShape& shape, bool by_columns) {
  // The entries of tables are numbered over all of them.
  bool after_table = false;
  for (const OperandTarget& target : targets) {
    const std::int64_t sums = p.batch * p.heads_q * positions_of(p, target, shape, by_columns);
    std::size_t bytes = static_cast<std::size_t>(sums) * sizeof(float);
    if (has_exact_sums(target)) bytes += static_cast<std::size_t>(entries_of(p, target.operand)) * cuda::kExactSumBytes;
    layout.add_sums(target.operand, bytes, after_table);
    after_table = target.sum == OperandSum::kTable;
  }
}

void add_clears(CallLayout& layout, const AttentionProblem& p, std::span<const OperandTarget> targets) {
  for (const OperandTarget& target : targets) {
    if (!has_exact_sums(target)) continue;
    const std::int64_t words = entries_of(p, target.operand) * static_cast<std::int64_t>(cuda::kExactSumWords);
    layout.add_launch({clear_kernel(target), tiles_of(words, kTotalThreads), kTotalThreads, 0});
  }
}

void add_total(CallLayout& layout, const AttentionProblem& p, const OperandTarget& target) {
  const std::int64_t entries = entries_of(p, target.operand);
  const auto launch = [&](std::string kernel, std::int64_t count, std::int64_t block) {
    layout.add_launch({std::move(kernel), tiles_of(count, block), kTotalThreads, 0});
  };
  switch (target.sum) {
    case OperandSum::kTotal: return launch(total_kernel(target), entries, kTotalWarps);
    case OperandSum::kQueries:
    case OperandSum::kKeys:
    case OperandSum::kTable:
    case OperandSum::kNothing: return launch(total_kernel(target), entries, kTotalThreads);
    case OperandSum::kDifference: {
      constexpr std::int64_t kLanes = 32;
      const std::int64_t differences = tiles_of(p.seq_q + p.seq_kv - 1, kLanes) * kLanes;
      launch(diagonals_kernel(target), p.heads_q * differences, kTotalThreads);
      return launch(total_kernel(target), entries, kTotalThreads);
    }
    case OperandSum::kShared:
    case OperandSum::kElement: return;
    case OperandSum::kSink:
      return layout.add_launch({"attention_sink_gradient", p.heads_q, kTotalThreads, kTotalWarps * sizeof(float)});
  }
}

void add_gains(CallLayout& layout, const Work& work, const TileShape& shape, bool by_columns) {
  if (work.targets.empty()) return;
  const AttentionProblem& p = work.problem.problem;
  add_sums(layout, p, work.targets, shape, by_columns);
  add_clears(layout, p, work.targets);
  for (const OperandTarget& target : work.targets) add_total(layout, p, target);
}

}  // namespace scoremod::backend::kernels
