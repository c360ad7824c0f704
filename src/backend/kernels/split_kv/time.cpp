#include "backend/kernels/split_kv/time.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "backend/kernels/mask/mask_knowledge.hpp"
#include "backend/kernels/shared/node_costs.hpp"
#include "backend/kernels/split_kv/shapes.hpp"
#include "backend/measured_at.hpp"

namespace scoremod::backend::kernels {
namespace {

/// A family, in milliseconds.
struct Walk {
  double launch, rows;    ///< what a call takes beside its walks over keys, and for each row
  double keys, row_keys;  ///< of a block of kWarps alone for each million keys, and for each row of its tile
  double reached;         ///< of the memory's bandwidth
};
constexpr Walk kByWarps{0.005, 0, 7.25, 0.095, 0.885}, kByGroups{0.005, 7.7e-5, 7.7, 0, 0.911};
constexpr double kWarps = 8;
const Walk& walk_of(const TileShape& shape) { return is_hopper(shape.family) ? kByGroups : kByWarps; }
/// The delay of CTAs that begin when others have ended: their first loads have nothing to run beside.
constexpr double kNextBlocks = 0.002;
/// The time of split CTAs: to store partials, for the last of a tile to merge them, and for each million rows.
constexpr double kMerge = 0.004, kMergeRows = 0.74;
/// Keys and values that are read again by other blocks at the same time come from the cache.
constexpr double kReadAgain = 0.6;
/// The time for CTAs of a persistent kernel to find their shares by the lengths.
constexpr double kShares = 0.003;
/// A persistent kernel's time beside that of split CTAs where all lengths are the same. A window makes even shares of
/// keys uneven work (bench/results/decode_lengths.json).
constexpr double kPersistent = 1.07, kPersistentOfPartialTiles = 1.7;
/// The time of a persistent CTA for each tile of rows that it goes to.
constexpr double kNextTile = 0.0007;
/// The longest sequence by the mean one, where lengths are in device memory. Below kLongContext keys no sequence is so
/// long that others' CTAs end much earlier. Above, one may take five times as long as even shares.
constexpr double kLongest = 1 / 0.75;
constexpr std::int64_t kLongContext = 16384;
/// A round of CTAs with so few keys each takes longer to begin than to read them.
constexpr std::int64_t kShortKeys = 128;
constexpr double kShortRound = 0.007;
/// How far arithmetic and memory hide each other: the sum is of their fourth powers.
constexpr double kHidden = 4;

/// How often as many blocks as run at once follow each other, and how many there are in the end.
struct Rounds {
  double full, rest;

  Rounds(double blocks, double at_once) : full(std::floor(blocks / at_once)), rest(blocks - full * at_once) {}
  double count() const { return full + (rest > 0 ? 1 : 0); }
};

/// The time of the arithmetic, as if memory took none: `keys` are a CTA's.
double compute_time(const compiler::CompiledProblem& problem, const TileShape& shape, const MaskWork& mask, double keys,
                    const Rounds& rounds, const DeviceRates& rates) {
  const AttentionProblem& p = problem.problem;
  const Walk& walk = walk_of(shape);
  const NodeCosts costs = node_costs(problem.forward.program, true);
  const bool listed = mask_knowledge(problem, Direction::kForward).kind == MaskKnowledge::Kind::kList;
  const double program = costs.value * mask.run + costs.keep * mask.partial + (listed ? costs.keep : 0);
  const double dims = static_cast<double>(p.dim_qk + p.dim_v) / kMeasuredDims;
  double of_block = (walk.keys + walk.row_keys * shape.queries) * keys / 1e6 * mask.run * dims;
  of_block += program * kMeasuredOn.multiprocessors * shape.queries * keys / kMeasuredPairs;
  // Blocks of one multiprocessor share its arithmetic, and one of few warps leaves half of it idle.
  const double idle = kWarps / shape.warps;
  const auto together = [&](double beside) { return beside > 0 ? std::max(beside, idle) : 0; };
  const double rest = std::min<double>(shape.blocks, std::ceil(rounds.rest / rates.multiprocessors));
  return of_block * (rounds.full * together(shape.blocks) + together(rest)) * kMeasuredOn.clock_khz / rates.clock_khz;
}

/// How much longer the longest sequence is than the mean one.
double longest_by_mean(const AttentionProblem& p) {
  if (p.batch == 1 || !has_lengths_in_memory(p)) return 1;
  const double filled = filled_part(p);
  return filled < 1 ? 1 / filled : p.paged && p.seq_kv >= kLongContext ? kLongest : 1;
}

/// How much longer a kernel takes whose CTAs take even shares of all keys.
double even_shares(const masks::MaskClass& mask) {
  const bool of_lengths_alone = mask.kind != masks::MaskKind::kGeneral && mask.kind != masks::MaskKind::kDocuments;
  const bool has_window = mask.band && mask.band->left;
  return of_lengths_alone && !has_window ? kPersistent : kPersistentOfPartialTiles;
}

/// The time of the memory, as if arithmetic took none.
double memory_time(const AttentionProblem& p, const TileShape& shape, const MaskWork& mask, const DeviceRates& rates) {
  const double rows = static_cast<double>(p.batch * p.heads_kv * p.seq_kv);
  const auto row_tiles = static_cast<double>(split_kv_row_tiles(shape, p));
  double bytes = 2 * rows * static_cast<double>(p.dim_qk + p.dim_v) * mask.run * (1 + kReadAgain * (row_tiles - 1));
  // The part of a tile's rows that the problem fills.
  const double filled = static_cast<double>(p.heads_q / p.heads_kv * p.seq_q) / (row_tiles * shape.queries);
  if (shape.splits > 1) bytes += 2 * filled * static_cast<double>(split_kv_part_bytes(shape, p));
  return bytes / (walk_of(shape).reached * rates.bytes_per_ms);
}

}  // namespace

Prediction split_kv_time(const compiler::CompiledProblem& problem, const TileShape& shape, const MaskWork& mask,
                         const DeviceRates& rates) {
  const AttentionProblem& p = problem.problem;
  const Walk& walk = walk_of(shape);
  const bool persistent = shape.persistent_ctas > 0;
  const auto tiles = static_cast<double>(p.batch * p.heads_kv * split_kv_row_tiles(shape, p));
  const double blocks = persistent ? shape.persistent_ctas : tiles * shape.splits;
  const Rounds rounds(blocks, rates.multiprocessors * shape.blocks);
  const double keys = static_cast<double>(p.seq_kv) * tiles / blocks;
  // CTAs of the longest sequence go on when others have ended: all take as long as if every sequence were as long.
  const double uneven = persistent ? even_shares(problem.forward.mask) : longest_by_mean(p);
  const double compute = compute_time(problem, shape, mask, keys, rounds, rates) * uneven;
  const double memory = memory_time(p, shape, mask, rates) * uneven;
  const auto rows = static_cast<double>(std::min<std::int64_t>(p.heads_q / p.heads_kv * p.seq_q, shape.queries));
  double beside = walk.launch + walk.rows * rows + (rounds.count() - 1) * kNextBlocks;
  if (persistent) beside += kShares + kNextTile * tiles / blocks;
  if (!persistent && p.paged && p.seq_kv <= kShortKeys) beside += (rounds.count() - 1) * kShortRound;
  if (shape.splits > 1 || persistent)
    beside += kMerge + kMergeRows * static_cast<double>(p.batch * p.heads_q * p.seq_q) / 1e6;
  std::string source = "scaled from measured kernels";
  if (rates != kMeasuredOn) source += "; scaled to this device's multiprocessors, clock and memory";
  return {beside + std::pow(std::pow(compute, kHidden) + std::pow(memory, kHidden), 1 / kHidden), std::move(source)};
}

}  // namespace scoremod::backend::kernels
