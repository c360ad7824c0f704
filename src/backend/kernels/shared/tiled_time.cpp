#include "backend/kernels/shared/tiled_time.hpp"

#include <algorithm>

#include "backend/kernels/mask/mask_knowledge.hpp"
#include "backend/kernels/shared/node_costs.hpp"
#include "backend/measured_at.hpp"
#include "base/fail.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::kernels {
namespace {

/// A product of floats is three MMAs of half the width each, beside the instructions that split them.
constexpr double kFloatProducts = 6;
/// Portable tiles of 16 rows a warp read each matrix for half as many products, and so do small Hopper ones.
constexpr double kSmallTiles = 1.15;
/// The time of the kernel that makes the block mask, for all scores: by intervals, and by its elements for a tile that
/// intervals leave undecided. The mask's own statements come on top.
constexpr double kStates = 0.05, kStatesOfElements = 0.9, kStatesLaunch = 0.016;
/// The part of the memory's bandwidth that kernels reach.
constexpr double kReachedBandwidth = 0.7;

double pairs_of(const AttentionProblem& p) {
  return static_cast<double>(p.batch * p.heads_q) * static_cast<double>(p.seq_q) * static_cast<double>(p.seq_kv);
}

std::int64_t tiles_of(std::int64_t length, int tile) { return (length + tile - 1) / tile; }

/// How much longer it takes if the CTAs do not fill the device.
double idle_parts(const AttentionProblem& p, Direction direction, const TileShape& shape, const DeviceRates& rates) {
  std::int64_t blocks = p.batch * p.heads_q * tiles_of(p.seq_q, shape.queries);
  if (direction == Direction::kBackward)
    blocks = std::min(blocks, p.batch * p.heads_kv * tiles_of(p.seq_kv, shape.keys));
  return std::max(1.0, rates.multiprocessors / static_cast<double>(blocks));
}

double memory_time(const AttentionProblem& p, Direction direction, const DeviceRates& rates) {
  const double heads_q = static_cast<double>(p.batch * p.heads_q), heads_kv = static_cast<double>(p.batch * p.heads_kv);
  const double elements = (heads_q * static_cast<double>(p.seq_q) + heads_kv * static_cast<double>(p.seq_kv)) *
                          static_cast<double>(p.dim_qk + p.dim_v);
  const double bytes = (direction == Direction::kForward ? 2 : 6) * elements * (p.dtype == DType::kF32 ? 2 : 1);
  return bytes / (kReachedBandwidth * rates.bytes_per_ms);
}

/// The time of the kernel that makes the block mask.
double states_time(const AttentionProblem& p, const MaskKnowledge& mask, const MaskWork& work, const NodeCosts& costs) {
  if (!mask.has_states() || mask.same_in_every_call) return 0;
  double pairs = filled_part(p) * pairs_of(p) / static_cast<double>(p.batch * p.heads_q);
  if (mask.varies_with_batch) pairs *= static_cast<double>(p.batch);
  if (mask.varies_with_head) pairs *= static_cast<double>(p.heads_q);
  return pairs / kMeasuredPairs * (kStates + work.partial * (kStatesOfElements + costs.keep));
}

/// A walk over all tiles with two products of each, and what there is to do at each element beside the program.
constexpr double kOperandWalk = 1.9, kOperandElement = 0.5, kOperandRows = 0.1, kOperandLaunches = 0.02;
/// kSharedWalk is the walk for a bias that batches or heads share, in place of kOperandWalk: each tile loads all four
/// tensors. kTableRead is each read of a table, whose sums threads keep to themselves; in large tables they add to
/// exact sums. Both are times of an H200 (bench/NOTES.md); 257 entries without neighbours stand for a large table.
constexpr double kSharedWalk = 5.1, kTableRead = 13, kLargeTableRead = 47;
constexpr std::int64_t kSmallTableOfHead = 64;
/// The additional time of gradient sums beside dq, dk and dv: for all targets, for each, and for one along diagonals,
/// which goes through shared memory.
constexpr double kGainsElement = 0.2, kGain = 0.15, kDiagonals = 0.6, kGainsLaunches = 0.01;

/// The time of an element of a walk over queries, for all tables that are summed in it.
double table_reads_time(const compiler::CompiledProblem& problem, std::span<const OperandTarget> targets) {
  double time = 0;
  for (const OperandTarget& target : targets) {
    if (target.sum != OperandSum::kTable) continue;
    const compiler::OperandReduction& table = reduction_of(problem.backward->reductions, target.operand);
    const bool small = table.entries() <= kSmallTableOfHead * problem.problem.heads_q;
    time += static_cast<double>(table.roots.size()) * (small ? kTableRead : kLargeTableRead);
  }
  return time;
}

}  // namespace

Prediction operand_time(const compiler::CompiledProblem& problem, std::span<const OperandTarget> targets,
                        const TileShape& shape, const MaskWork& mask, const DeviceRates& rates) {
  const AttentionProblem& p = problem.problem;
  bool queries = false, keys = false;
  double shared = 0;  // walks
  for (const OperandTarget& target : targets) {
    queries = queries || target.sum == OperandSum::kTotal || target.sum == OperandSum::kQueries ||
              target.sum == OperandSum::kElement || target.sum == OperandSum::kTable;
    keys = keys || target.sum == OperandSum::kKeys;
    shared += target.sum == OperandSum::kShared;
  }
  const NodeCosts costs = node_costs(problem.backward->program, true);
  const double pairs = pairs_of(p) / kMeasuredPairs, dims = static_cast<double>(p.dim_qk + p.dim_v) / kMeasuredDims;
  const double of_floats = shape.holds_floats() ? kFloatProducts : 1;
  const auto walk = [&](double products) {
    return mask.run * (products * of_floats * dims + kOperandElement + costs.value) + mask.partial * costs.keep;
  };
  double compute = walk(kOperandWalk) * (queries + keys) + walk(kSharedWalk) * shared;
  compute += mask.run * table_reads_time(problem, targets);
  compute *= pairs * idle_parts(p, Direction::kBackward, shape, rates);
  compute += states_time(p, mask_knowledge(problem, Direction::kBackward), mask, costs);
  compute += kOperandRows * static_cast<double>(p.batch * p.heads_q * p.seq_q) / kMeasuredRows;
  compute *= kMeasuredOn.multiprocessors * kMeasuredOn.clock_khz / (rates.multiprocessors * rates.clock_khz);
  return {kOperandLaunches + compute, "estimated from measured kernels"};
}

double gains_time(const compiler::CompiledProblem& problem, std::span<const OperandTarget> targets,
                  const TileShape& shape, const MaskWork& mask, const DeviceRates& rates) {
  const AttentionProblem& p = problem.problem;
  double sums = 0, element = 0, written = 0;
  for (const OperandTarget& target : targets) {
    if (target.sum == OperandSum::kDifference)
      element += kDiagonals;
    else
      sums += target.sum == OperandSum::kSink ? 0 : 1;
    // Zeros too.
    if (target.sum == OperandSum::kElement)
      written += static_cast<double>(problem::bytes_of(problem::spec_of(p, target.operand)));
  }
  if (sums > 0) element += kGainsElement + sums * kGain;
  double compute = pairs_of(p) / kMeasuredPairs * mask.run * element;
  compute *= idle_parts(p, Direction::kBackward, shape, rates);
  compute *= kMeasuredOn.multiprocessors * kMeasuredOn.clock_khz / (rates.multiprocessors * rates.clock_khz);
  return kGainsLaunches + compute + written / (kReachedBandwidth * rates.bytes_per_ms);
}

Prediction tiled_time(const compiler::CompiledProblem& problem, Direction direction, const TileShape& shape,
                      const MaskWork& mask, const DeviceRates& rates, const TiledTimes& direct, bool small) {
  const AttentionProblem& p = problem.problem;
  const NodeCosts costs = node_costs(program_of(problem, direction), false, shape.loaded_bias);
  const MaskKnowledge knowledge = mask_knowledge(problem, direction);
  // Whole tiles are run, whatever part of them there is.
  const double rows = static_cast<double>(p.batch * p.heads_q * tiles_of(p.seq_q, shape.queries) * shape.queries);
  const double pairs = rows * static_cast<double>(tiles_of(p.seq_kv, shape.keys) * shape.keys);
  double products = direct.tiles * mask.run * pairs / kMeasuredPairs + direct.rows * rows / kMeasuredRows;
  products *= direct.dimless + (1 - direct.dimless) * static_cast<double>(p.dim_qk + p.dim_v) / kMeasuredDims;
  if (small) products *= kSmallTiles;
  if (shape.holds_floats()) products *= kFloatProducts;
  if (std::max(p.dim_qk, p.dim_v) > 128) products *= direct.wide_heads;
  const double program =
      direct.evaluations * (costs.value * mask.run + costs.keep * mask.partial) * pairs / kMeasuredPairs;
  double compute = (products + program) * (mask.uneven ? direct.uneven : 1) * idle_parts(p, direction, shape, rates);
  compute += states_time(p, knowledge, mask, costs);
  compute *= kMeasuredOn.multiprocessors * kMeasuredOn.clock_khz / (rates.multiprocessors * rates.clock_khz);
  double launches = direct.launches;
  if (knowledge.has_states() && !knowledge.same_in_every_call) launches += kStatesLaunch;
  std::string source = "scaled from measured kernels";
  if (rates != kMeasuredOn) source += "; scaled to this device's multiprocessors, clock and memory";
  const double milliseconds = launches + std::max(compute, memory_time(p, direction, rates));
  return {milliseconds, std::move(source)};
}

}  // namespace scoremod::backend::kernels
