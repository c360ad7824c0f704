#include "backend/kernels/operand_kernels.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include "backend/cuda/exact_sum.hpp"
#include "backend/kernels/hopper_shape.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::kernels {
namespace {

constexpr std::size_t kAlignment = 16;
/// The kernels that add up partial sums have one thread for an entry, or one warp.
constexpr int kTotalThreads = 128;
constexpr std::int64_t kTotalWarps = 4;
/// As in attention_diagonals.cuh.
constexpr std::int64_t kDiagonalRows = 64, kDiagonalThreads = 128;

std::int64_t blocks_of(std::int64_t size, std::int64_t block) { return (size + block - 1) / block; }
std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// The sums of each batch and query head: diagonal_groups() times diagonal_pitch() of attention_diagonals.cuh.
std::int64_t diagonals_of(const AttentionProblem& p, const TileShape& shape) {
  const std::int64_t queries = blocks_of(p.seq_q, shape.queries) * shape.queries,
                     keys = blocks_of(p.seq_kv, shape.keys) * shape.keys;
  return shape.fused ? keys / kDiagonalRows * (queries + kDiagonalThreads)
                     : queries / kDiagonalRows * (keys + kDiagonalThreads);
}

/// Positions of a target's sums, for each batch and query head.
std::int64_t positions_of(const AttentionProblem& p, const OperandTarget& target, const TileShape& shape) {
  switch (target.sum) {
    case OperandSum::kTotal:
      return shape.fused ? blocks_of(p.seq_kv, shape.keys) * shape.warps : blocks_of(p.seq_q, shape.queries);
    case OperandSum::kQueries: return p.seq_q;
    case OperandSum::kKeys: return p.seq_kv;
    case OperandSum::kDifference: return diagonals_of(p, shape);
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

std::int64_t entries_of(const AttentionProblem& p, std::uint32_t operand) {
  std::int64_t entries = 1;
  for (const std::int64_t extent : problem::spec_of(p, operand).shape) entries *= extent;
  return entries;
}

bool has(std::span<const OperandTarget> targets, OperandSum sum) {
  return std::ranges::find(targets, sum, &OperandTarget::sum) != targets.end();
}

}  // namespace

OperandKernels::OperandKernels(const compiler::CompiledProblem& problem, std::vector<OperandTarget> targets,
                               const TileShape& shape, Gains gains)
    : backward_(problem, Direction::kBackward, shape), targets_(std::move(targets)) {
  const AttentionProblem& p = problem.problem;
  workspace_bytes_ = backward_.workspace_bytes();
  names_.reserve(targets_.size());  // launches point into them
  bool after_table = false;
  for (const OperandTarget& target : targets_) {
    // Tables' entries are numbered over all of them.
    if (!after_table) workspace_bytes_ = aligned(workspace_bytes_);
    after_table = target.sum == OperandSum::kTable;
    sums_.push_back(workspace_bytes_);
    const std::int64_t sums = p.batch * p.heads_q * positions_of(p, target, shape);
    workspace_bytes_ += static_cast<std::size_t>(sums) * sizeof(float);
    if (has_exact_sums(target))
      workspace_bytes_ += static_cast<std::size_t>(entries_of(p, target.operand)) * cuda::kExactSumBytes;
    names_.push_back({total_kernel(target), clear_kernel(target), diagonals_kernel(target)});
  }
  workspace_bytes_ = aligned(workspace_bytes_);
  if (gains == Gains::kBeside)
    add_launches_beside(shape);
  else
    add_launches_apart(p, shape);
  add_totals(p, shape);
}

void OperandKernels::add_launches_beside(const TileShape& shape) {
  launches_ = backward_.launches();
  add_clears(problem());
  if (!has_differences(targets_)) return;
  for (KernelLaunch& launch : launches_) {
    if (launch.kernel == std::string_view(shape.fused ? "hopper_backward_fused" : "hopper_backward_queries"))
      launch.shared_bytes += hopper_diagonals_shared_bytes(shape);
  }
}

void OperandKernels::add_launches_apart(const AttentionProblem& p, const TileShape& shape) {
  for (const KernelLaunch& launch : backward_.launches()) {
    const std::string_view name = launch.kernel;
    if (name == "attention_tile_states" || name == "attention_backward_rows") launches_.push_back(launch);
  }
  const std::int64_t heads = p.batch * p.heads_q;
  add_clears(p);
  const bool tables = has(targets_, OperandSum::kTable);
  if (tables || has(targets_, OperandSum::kTotal) || has(targets_, OperandSum::kQueries) ||
      has(targets_, OperandSum::kElement)) {
    launches_.push_back(
        {"attention_operand_queries", blocks_of(p.seq_q, shape.queries) * heads, shape.threads(),
         operand_queries_shared_bytes(shape, p.dim_qk, p.dim_v) + (tables ? table_sums_shared_bytes(shape) : 0)});
  }
  if (has(targets_, OperandSum::kKeys)) {
    launches_.push_back({"attention_operand_keys", blocks_of(p.seq_kv, shape.keys) * heads, shape.threads(),
                         backward_keys_shared_bytes(shape, p.dim_qk, p.dim_v)});
  }
}

void OperandKernels::add_clears(const AttentionProblem& p) {
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    if (!has_exact_sums(targets_[i])) continue;
    const std::int64_t words = entries_of(p, targets_[i].operand) * static_cast<std::int64_t>(cuda::kExactSumWords);
    launches_.push_back({names_[i].clear.c_str(), blocks_of(words, kTotalThreads), kTotalThreads, 0});
  }
}

/// Adds the kernel of a bias that batches or heads share along queries and keys.
void OperandKernels::add_shared(std::size_t target, const TileShape& shape) {
  const AttentionProblem& p = problem();
  const std::int64_t tiles = blocks_of(p.seq_q, shape.queries) * blocks_of(p.seq_kv, shape.key_step);
  const std::int64_t owners = entries_of(p, targets_[target].operand) / (p.seq_q * p.seq_kv);
  launches_.push_back({names_[target].total.c_str(), owners * tiles, shape.threads(),
                       shared_elements_shared_bytes(shape, p.dim_qk, p.dim_v)});
}

void OperandKernels::add_totals(const AttentionProblem& p, const TileShape& shape) {
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    const std::int64_t entries = entries_of(p, targets_[i].operand);
    switch (targets_[i].sum) {
      case OperandSum::kTotal:
        launches_.push_back({names_[i].total.c_str(), blocks_of(entries, kTotalWarps), kTotalThreads, 0});
        break;
      case OperandSum::kQueries:
      case OperandSum::kKeys:
      case OperandSum::kTable:
      case OperandSum::kNothing:
        launches_.push_back({names_[i].total.c_str(), blocks_of(entries, kTotalThreads), kTotalThreads, 0});
        break;
      case OperandSum::kDifference: {
        constexpr std::int64_t kLanes = 32;
        const std::int64_t differences = blocks_of(p.seq_q + p.seq_kv - 1, kLanes) * kLanes;
        launches_.push_back(
            {names_[i].diagonals.c_str(), blocks_of(p.heads_q * differences, kTotalThreads), kTotalThreads, 0});
        launches_.push_back({names_[i].total.c_str(), blocks_of(entries, kTotalThreads), kTotalThreads, 0});
        break;
      }
      case OperandSum::kShared: add_shared(i, shape); break;
      case OperandSum::kElement: break;
      case OperandSum::kSink:
        launches_.push_back({"attention_sink_gradient", p.heads_q, kTotalThreads, kTotalWarps * sizeof(float)});
        break;
    }
  }
}

ArgumentBytes OperandKernels::arguments(const BackwardTensors& tensors, const CallParameters& parameters,
                                        std::byte* workspace) const {
  ArgumentBytes bytes = backward_.arguments(tensors, parameters, workspace);
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    device::OperandArgument& operand = bytes.operand(targets_[i].operand);
    operand.gradient = tensors.d_operands[targets_[i].operand];
    operand.sums = reinterpret_cast<float*>(workspace + sums_[i]);
  }
  return bytes;
}

}  // namespace scoremod::backend::kernels
