#include "backend/kernels/attention_time.hpp"

#include <algorithm>

#include "backend/kernels/attention_source.hpp"
#include "backend/kernels/node_costs.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::kernels {
namespace {

// The shape and the device that costs were measured at.
constexpr double kMeasuredPairs = 64.0 * 4096 * 4096, kMeasuredDims = 256;
constexpr DeviceRates kMeasuredOn;

/// What a direction takes there with its best shape and no program.
constexpr double kForward = 1.79, kBackward = 7.05;
/// Of that, what does not grow with the head dims.
constexpr double kDimlessShare = 0.35;
/// Tiles of 16 rows a warp read each matrix for half as many products.
constexpr double kSmallTiles = 1.3;
/// What the sums of a wide head take beyond what its products do: they leave no room for large tiles.
constexpr double kWideHeads = 1.5;
/// Of a program's statements: the backward's two kernels evaluate them each.
constexpr double kEvaluationsBackward = 2;
/// Of the kernel that finds the states of tiles, for all scores, beside the mask's own statements.
constexpr double kStates = 0.25;
constexpr double kForwardLaunch = 0.006, kBackwardLaunch = 0.016, kStatesLaunch = 0.004;
/// Of the memory's bandwidth, what kernels reach.
constexpr double kReachedBandwidth = 0.7;

double pairs_of(const AttentionProblem& p) {
  return static_cast<double>(p.batch * p.heads_q) * static_cast<double>(p.seq_q) * static_cast<double>(p.seq_kv);
}

double tiles_time(const AttentionProblem& p, Direction direction, const TileShape& shape, double run) {
  const double dims = static_cast<double>(p.dim_qk + p.dim_v) / kMeasuredDims;
  double time = (direction == Direction::kForward ? kForward : kBackward) * run;
  time *= kDimlessShare + (1 - kDimlessShare) * dims;
  if (shape.row_tiles == 1) time *= kSmallTiles;
  if (std::max(p.dim_qk, p.dim_v) > 128) time *= kWideHeads;
  return time;
}

/// What becomes of the time where rows do not fill the last tile, or blocks of threads the device.
double unused_parts(const AttentionProblem& p, Direction direction, const TileShape& shape, const DeviceRates& rates) {
  const auto heads = static_cast<double>(p.batch * p.heads_q);
  const std::int64_t tiles = (p.seq_q + shape.queries - 1) / shape.queries;
  const double filled = static_cast<double>(p.seq_q) / static_cast<double>(tiles * shape.queries);
  double blocks = heads * static_cast<double>(tiles);
  if (direction == Direction::kBackward) {
    const std::int64_t key_tiles = (p.seq_kv + shape.keys - 1) / shape.keys;
    blocks = std::min(blocks, static_cast<double>(p.batch * p.heads_kv * key_tiles));
  }
  return std::max(1.0, rates.multiprocessors / blocks) / filled;
}

double memory_time(const AttentionProblem& p, Direction direction, const DeviceRates& rates) {
  const double heads_q = static_cast<double>(p.batch * p.heads_q), heads_kv = static_cast<double>(p.batch * p.heads_kv);
  const double elements = (heads_q * static_cast<double>(p.seq_q) + heads_kv * static_cast<double>(p.seq_kv)) *
                          static_cast<double>(p.dim_qk + p.dim_v);
  return (direction == Direction::kForward ? 2 : 6) * elements / (kReachedBandwidth * rates.bytes_per_ms);
}

/// Of the kernel that finds the states of tiles.
double states_time(const AttentionProblem& p, const MaskKnowledge& mask, const NodeCosts& costs) {
  if (mask.kind != MaskKnowledge::Kind::kList) return 0;
  double pairs = pairs_of(p) / static_cast<double>(p.batch * p.heads_q);
  if (mask.varies_with_batch) pairs *= static_cast<double>(p.batch);
  if (mask.varies_with_head) pairs *= static_cast<double>(p.heads_q);
  return pairs / kMeasuredPairs * (kStates + costs.keep);
}

}  // namespace

Prediction attention_time(const compiler::CompiledProblem& problem, Direction direction, const TileShape& shape,
                          const MaskWork& mask, const DeviceRates& rates) {
  const AttentionProblem& p = problem.problem;
  const bool forward = direction == Direction::kForward;
  const NodeCosts costs = node_costs(forward ? problem.forward.program : problem.backward->program);
  const MaskKnowledge knowledge = mask_knowledge(problem, direction);
  const double evaluations = forward ? 1 : kEvaluationsBackward;
  const double of_tiles =
      tiles_time(p, direction, shape, mask.run) + evaluations * (costs.value * mask.run + costs.keep * mask.partial);
  double compute = pairs_of(p) / kMeasuredPairs * of_tiles * unused_parts(p, direction, shape, rates);
  compute += states_time(p, knowledge, costs);
  compute *= kMeasuredOn.multiprocessors * kMeasuredOn.clock_khz / (rates.multiprocessors * rates.clock_khz);
  double launches = forward ? kForwardLaunch : kBackwardLaunch;
  if (knowledge.kind == MaskKnowledge::Kind::kList) launches += kStatesLaunch;
  std::string source = "scaled from measured kernels";
  if (rates != kMeasuredOn) source += "; scaled to this device's multiprocessors, clock and memory";
  return {launches + std::max(compute, memory_time(p, direction, rates)), std::move(source)};
}

}  // namespace scoremod::backend::kernels
