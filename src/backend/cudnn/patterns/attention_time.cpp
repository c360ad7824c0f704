#include "backend/cudnn/patterns/attention_time.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <string_view>

#include "backend/cudnn/patterns/score_costs.hpp"
#include "backend/cudnn/patterns/score_work.hpp"
#include "backend/measured_at.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::cudnn {
namespace {

constexpr std::int64_t kTile = 128;  // rows, and keys

/// The tiles of a head in the measured problem.
constexpr double kMeasuredTiles = kMeasuredPairs / kMeasuredHeads / (kTile * kTile);

/// How much longer tiles take where a band skips others: some are evaluated element by element, and rows are uneven. Of
/// heads wider than 128, accumulators leave less room. Both were fitted by hand to bench/results/peers.json, as
/// tests/golden/regret_test.cpp shows.
constexpr double kOfBands = 1.055, kWideForward = 1.1, kWideBackward = 1.5;
constexpr std::int64_t kWide = 128;
/// A deterministic backward's tiles beside others', likewise.
constexpr double kDeterministic = 1.22;
/// Head dims count in such steps.
constexpr std::int64_t kDimStep = 64;
/// The part of a tile's time without a modifier that does not grow with the head dims: the exponentials. From that
/// record's cases with head dims of 64 and 128.
constexpr double kDimlessShare = 0.4;
/// Ends the name of work on integers.
constexpr std::string_view kOfIntegers = ".i32";
/// The cost of work that no timed pattern has: that of the cheap half of the timed patterns.
constexpr double kAssumedCost = 0.05;
/// The factor for writing the gradients of all scores beside the backward; from the benchmark's learned bias without
/// and with it.
constexpr double kWrittenGradient = 1.17;
/// Launches, which small problems consist of.
constexpr double kForwardLaunch = 0.005, kBackwardLaunch = 0.012, kComputeLaunch = 0.004;
/// The part of the memory's bandwidth that kernels reach.
constexpr double kReachedBandwidth = 0.85;
/// The part of the bandwidth that cuDNN's kernel for one query reaches, and its extra time if heads leave half of the
/// multiprocessors without keys. 8192 keys at batch 16 and 32768 at batch 4 were timed on an H200.
constexpr double kReachedByOneRow = 0.89, kFewHeads = 0.0046;

std::int64_t tiles_of(std::int64_t length) { return (length + kTile - 1) / kTile; }

/// Both head dims, relative to those that were measured.
double relative_dims(const AttentionProblem& p) {
  const auto padded = [](std::int64_t dim) { return (dim + kDimStep - 1) / kDimStep * kDimStep; };
  return static_cast<double>(padded(p.dim_qk) + padded(p.dim_v)) / kMeasuredDims;
}

/// How much longer a problem's tiles take than those of the measured shape, but for their head dims.
double tile_factor(const AttentionProblem& p, Direction direction, bool skips_tiles) {
  const bool forward = direction == Direction::kForward;
  double factor = skips_tiles ? kOfBands : 1;
  if (std::max(p.dim_qk, p.dim_v) > kWide) factor *= forward ? kWideForward : kWideBackward;
  return !forward && p.deterministic ? factor * kDeterministic : factor;
}

/// The distances kv - q that a modifier's band nodes keep.
struct KeptDistances {
  std::int64_t least = std::numeric_limits<std::int32_t>::min(), most = std::numeric_limits<std::int32_t>::max();
};

/// As far as the kernel skips tiles for it.
KeptDistances skipped_by(const ModifierGraph& modifier, Direction direction) {
  KeptDistances kept;
  for (const ModifierNode& node : modifier.nodes) {
    if (!node.band) continue;
    if (node.band->left) {
      kept.least = std::max(kept.least, 1 - node.band->bound);
    } else if (direction == Direction::kForward || node.band->bound == 0) {
      // The backward skips nothing of a shifted diagonal: band.right.shifted costs as much as no band.
      kept.most = std::min(kept.most, node.band->bound);
    }
  }
  return kept;
}

/// The tiles of one head with a distance that is kept.
double run_tiles(std::int64_t seq_q, std::int64_t seq_kv, const KeptDistances& kept) {
  std::int64_t tiles = 0;
  for (std::int64_t row = 0; row < seq_q; row += kTile) {
    const std::int64_t last_row = std::min(row + kTile, seq_q) - 1;
    const std::int64_t first = std::max<std::int64_t>(0, row + kept.least);
    const std::int64_t last = std::min(seq_kv - 1, last_row + kept.most);
    if (first <= last) tiles += last / kTile - first / kTile + 1;
  }
  return static_cast<double>(tiles);
}

/// The cost of a modifier's nodes for all scores of the measured shape.
struct ModifierCost {
  double milliseconds = 0;
  int measured = 0, assumed = 0;  ///< kinds of work
};

ModifierCost modifier_cost(const ModifierGraph& modifier, Direction direction) {
  ModifierCost cost;
  for (const auto& [name, count] : score_work(modifier)) {
    std::optional<double> measured = score_cost(name, direction);
    // Numbers of four bytes take each other's time to be read.
    if (!measured && name.ends_with(kOfIntegers))
      measured = score_cost(name.substr(0, name.size() - kOfIntegers.size()) + ".f32", direction);
    cost.milliseconds += count * measured.value_or(kAssumedCost);
    ++(measured ? cost.measured : cost.assumed);
  }
  return cost;
}

/// Bytes that go to or come from memory whatever the modifier is, and those of a deterministic backward's workspace.
double memory_bytes(const AttentionProblem& p, Direction direction) {
  const auto heads_q = static_cast<double>(p.batch * p.heads_q), heads_kv = static_cast<double>(p.batch * p.heads_kv);
  const double dims = static_cast<double>(p.dim_qk + p.dim_v), element = 2;
  const double once =
      (heads_q * static_cast<double>(p.seq_q) + heads_kv * static_cast<double>(p.seq_kv)) * dims * element;
  if (direction == Direction::kForward) return once;
  const double scores = heads_q * static_cast<double>(p.seq_q) * static_cast<double>(p.seq_kv) * element;
  return 3 * once + (p.deterministic ? 2 * scores : 0);
}

/// Bytes of the tensors that a kernel of scoremod's writes before cuDNN runs.
double computed_bytes(const AttentionProblem& p, const LoweredModifier& modifier) {
  const std::array extents{p.batch, p.heads_q, p.seq_q, p.seq_kv};
  double bytes = 0;
  for (const ComputedOperand& operand : modifier.computed) {
    double entries = 1;
    for (std::size_t axis = 0; axis < kAxisCount; ++axis) {
      if (operand.axes[axis]) entries *= static_cast<double>(extents[axis]);
    }
    bytes += 4 * entries;
  }
  return bytes;
}

/// cuDNN's kernel for one query waits for memory alone. It was timed without a modifier; the cost of modifiers there
/// was never measured.
bool is_one_plain_row(const AttentionProblem& p, Direction direction, const LoweredModifier& modifier) {
  return direction == Direction::kForward && p.seq_q == 1 && modifier.graph.nodes.empty() && modifier.computed.empty();
}

std::string source_text(const AttentionProblem& p, Direction direction, const ModifierCost& cost,
                        const DeviceRates& rates, bool timed) {
  std::string text = "scaled from measured patterns";
  if (cost.assumed > 0) {
    text = concat(text, "; ", cost.assumed, " of ", cost.measured + cost.assumed, " kinds of steps assumed, not timed");
  }
  if (direction == Direction::kBackward && p.deterministic) text += "; a deterministic workspace's traffic assumed";
  if (!timed) {
    text += "; measured on sm_90, another architecture's kernels assumed to do as much in a clock";
  } else if (rates != kMeasuredOn) {
    text += "; scaled to this device's multiprocessors, clock and memory";
  }
  return text;
}

}  // namespace

Prediction attention_time(const AttentionProblem& problem, const PlanTask& task, const LoweredModifier& modifier,
                          const DeviceRates& rates, bool timed) {
  const AttentionProblem& p = problem;
  const TileCosts costs = tile_costs(task.direction);
  ModifierCost cost = modifier_cost(modifier.graph, task.direction);
  if (is_one_plain_row(p, task.direction, modifier)) {
    const double memory = memory_bytes(p, task.direction) / (kReachedByOneRow * rates.bytes_per_ms);
    const bool few_heads = 2.0 * static_cast<double>(p.batch * p.heads_kv) <= rates.multiprocessors;
    return {kForwardLaunch + (few_heads ? kFewHeads : 0) + memory, source_text(p, task.direction, cost, rates, timed)};
  }
  if (task.operand_gradient) cost.milliseconds += kWrittenGradient;
  const auto heads = static_cast<double>(p.batch * p.heads_q);
  const auto rows = static_cast<double>(tiles_of(p.seq_q));
  const double dims = relative_dims(p);
  const double run = run_tiles(p.seq_q, p.seq_kv, skipped_by(modifier.graph, task.direction));
  const double factor = tile_factor(p, task.direction, run < rows * static_cast<double>(tiles_of(p.seq_kv)));
  const double tile =
      costs.tile * (kDimlessShare + (1 - kDimlessShare) * dims) * factor + cost.milliseconds / kMeasuredTiles;
  double compute = heads / kMeasuredHeads * (rows * costs.row * dims + run * tile);
  compute *= kMeasuredOn.multiprocessors * kMeasuredOn.clock_khz / (rates.multiprocessors * rates.clock_khz);
  // One CTA takes a tile of rows in forward and of keys in backward; with fewer CTAs than multiprocessors some are
  // idle.
  const double blocks =
      heads * (task.direction == Direction::kForward ? rows : static_cast<double>(tiles_of(p.seq_kv)));
  compute *= std::max(1.0, rates.multiprocessors / blocks);
  const double memory = memory_bytes(p, task.direction) / (kReachedBandwidth * rates.bytes_per_ms);
  double launch = task.direction == Direction::kForward ? kForwardLaunch : kBackwardLaunch;
  if (!modifier.computed.empty()) {
    launch += kComputeLaunch + computed_bytes(p, modifier) / (kReachedBandwidth * rates.bytes_per_ms);
  }
  return {launch + std::max(compute, memory), source_text(p, task.direction, cost, rates, timed)};
}

}  // namespace scoremod::backend::cudnn
