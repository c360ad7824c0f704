#include "backend/kernels/shared/tiled_variant.hpp"

#include <algorithm>

#include "backend/kernels/mask/mask.hpp"
#include "backend/kernels/shared/node_costs.hpp"
#include "backend/measured_at.hpp"
#include "base/fail.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::kernels {
namespace {

/// About the SM count of the devices that these kernels are for. So many CTAs, one on each SM, read from as many heads
/// in either order, so that L2 has to keep nothing more.
constexpr std::int64_t kBlocksAtOnce = 128;
/// With fewer heads than these the last blocks wait for a few long rows; up to so many tiles a head more cost nothing.
constexpr int kLeastTogether = 8;
constexpr int kOrderThreads = 512;
/// Rows of tiles that one block puts in order: it compares all with all.
constexpr std::int64_t kMostOrdered = 4096;

/// The work tiles of a head in all sequences, each of `tiles` or, of packed tokens, as first_packed_tile() of
/// shared/tiles.cuh places them.
std::int64_t work_tiles(std::int64_t batch, std::int64_t tiles, std::optional<std::int64_t> packed_tokens,
                        std::int64_t rows) {
  return packed_tokens ? *packed_tokens / rows + batch : batch * tiles;
}

bool packs_queries(const Work& work) {
  return work.problem.problem.tokens_q && packs_tiles(work.problem.problem, work.targets.empty());
}
/// CTAs that fill rows of tokens that no sequence has, a warp for each token: about two CTAs on each SM. Most calls
/// have no such tokens, and then all CTAs end at once.
constexpr std::int64_t kOutsideCtas = 264;

/// The rows of queries of all heads, in whole work tiles.
std::int64_t rows_of_work_tiles(const Work& work, const CallLayout& layout, const TileShape& shape) {
  return std::int64_t{layout.query_work_tiles} * shape.queries * work.problem.problem.heads_q;
}

/// `tiles` are those of a head that CTAs take one after the other. The heads are as many as have CTAs on a device at
/// once, and some more if rows are few.
int heads_together(std::int64_t tiles, const masks::MaskClass& mask) {
  // All rows are as long as each other.
  if (mask.kind == masks::MaskKind::kFull) return 1;
  const int least = tiles > kBlocksAtOnce ? 1 : kLeastTogether;
  return static_cast<int>(std::max<std::int64_t>(least, kBlocksAtOnce / tiles));
}

void add_tables(CallLayout& layout, const Work& work, const TileShape& shape) {
  const PositionTables tables = position_tables(work.problem, work.direction);
  if (tables.nodes.empty()) return;
  const std::int64_t entries = tables.entries(work.problem.problem, std::int64_t{layout.query_tiles} * shape.queries,
                                              std::int64_t{layout.key_tiles} * shape.keys);
  layout.add_workspace(&device::AttentionArguments::differences,
                       tables.nodes.size() * static_cast<std::size_t>(entries) * sizeof(float));
  layout.add_launch({"attention_differences", tiles_of(entries, kSmallThreads), kSmallThreads, 0});
}

/// Masks of a call: of each batch and head, unless these share one.
std::int64_t planes_of(const MaskKnowledge& mask, const AttentionProblem& p) {
  return (mask.varies_with_batch ? p.batch : 1) * (mask.varies_with_head ? p.heads_q : 1);
}

/// Adds what follows from the mask, and the launch that makes it: once if the mask is the same in every call.
template <class Value>
void add_of_mask(CallLayout& layout, const MaskKnowledge& mask, Value* device::AttentionArguments::*pointer,
                 std::int64_t bytes, KernelLaunch launch) {
  const auto size = static_cast<std::size_t>(bytes);
  if (mask.same_in_every_call) {
    layout.add_memory_once(pointer, size);
    layout.add_launch_once(std::move(launch));
  } else {
    layout.add_workspace(pointer, size);
    layout.add_launch(std::move(launch));
  }
}

/// The block mask.
void add_states(CallLayout& layout, const Work& work) {
  const MaskKnowledge mask = mask_knowledge(work.problem, work.direction);
  if (!mask.has_states()) return;
  const AttentionProblem& p = work.problem.problem;
  const std::int64_t planes = planes_of(mask, p);
  const std::int64_t tiles = std::int64_t{layout.query_tiles} * layout.key_tiles * planes;
  // The kernel finds states of a sequence's own tiles alone if work tiles are packed.
  const bool packs = packs_queries(work) && mask.varies_with_batch;
  const std::int64_t rows_of_tiles = packs ? layout.query_work_tiles * (planes / p.batch) : layout.query_tiles * planes;
  const std::int64_t found = rows_of_tiles * layout.key_tiles;
  add_of_mask(layout, mask, &device::AttentionArguments::states, tiles,
              {"attention_block_mask", tiles_of(found, kSmallWarps), kSmallThreads, 0});
}

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

/// How much longer it takes if the CTAs do not fill the device.
double idle_parts(const AttentionProblem& p, Direction direction, const TileShape& shape, const DeviceRates& rates) {
  const auto ctas = [&](std::int64_t length, std::optional<std::int64_t> tokens, int rows) {
    return work_tiles(p.batch, tiles_of(length, rows), tokens, rows);
  };
  std::int64_t blocks = p.heads_q * ctas(p.seq_q, p.tokens_q, shape.queries);
  if (direction == Direction::kBackward)
    blocks = std::min(blocks, p.heads_kv * ctas(p.seq_kv, p.tokens_kv, shape.keys));
  return std::max(1.0, rates.multiprocessors / static_cast<double>(blocks));
}

double memory_time(const AttentionProblem& p, Direction direction, const DeviceRates& rates) {
  const std::int64_t queries = p.tokens_q.value_or(p.batch * p.seq_q), keys = p.tokens_kv.value_or(p.batch * p.seq_kv);
  const double elements = static_cast<double>((p.heads_q * queries + p.heads_kv * keys) * (p.dim_qk + p.dim_v));
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

std::int64_t tiles_of(std::int64_t size, std::int64_t tile) { return (size + tile - 1) / tile; }

bool packs_tiles(const AttentionProblem& problem, bool has_no_targets) {
  return (problem.tokens_q || problem.tokens_kv) && has_no_targets;
}

std::optional<std::int64_t> written_tokens(const Work& work) {
  const AttentionProblem& p = work.problem.problem;
  return work.direction == Direction::kForward ? p.tokens_q : std::max(p.tokens_q, p.tokens_kv);
}

CallLayout TiledVariant::layout(const Work& work) const {
  CallLayout layout = family_layout(work);
  const std::optional<std::int64_t> tokens = written_tokens(work);
  if (!tokens) return layout;
  // It comes first, so that offsets which decrease, as nobody checks on a device, cost no sequence its rows.
  const std::int64_t ctas = std::min(kOutsideCtas, tiles_of(*tokens, kSmallWarps));
  layout.launches().insert(layout.launches().begin(), {"attention_clear_outside", ctas, kSmallThreads, 0});
  return layout;
}

void add_tile_order(CallLayout& layout, const Work& work, std::int64_t rows) {
  const MaskKnowledge mask = mask_knowledge(work.problem, work.direction);
  if (!mask.has_states() || rows > kMostOrdered) return;
  constexpr auto kInt = static_cast<std::int64_t>(sizeof(int));
  const std::int64_t planes = planes_of(mask, work.problem.problem);
  add_of_mask(layout, mask, &device::AttentionArguments::order, planes * rows * kInt,
              {"attention_tile_order", planes, kOrderThreads, static_cast<std::size_t>(rows * kInt)});
}

KernelLaunch row_terms_launch(const Work& work, const CallLayout& layout, const TileShape& shape, bool whole_tiles) {
  const AttentionProblem& p = work.problem.problem;
  const bool all = packs_queries(work) || whole_tiles;
  const std::int64_t rows = all ? rows_of_work_tiles(work, layout, shape) : p.batch * p.heads_q * p.seq_q;
  return {"attention_backward_rows", tiles_of(rows, kSmallWarps * device::kRowsOfWarp), kSmallThreads, 0};
}

CallLayout tiled_layout(const Work& work, const TileShape& shape, Gains gains) {
  const AttentionProblem& p = work.problem.problem;
  const bool forward = work.direction == Direction::kForward, apart = gains == Gains::kApart;
  const bool packs = packs_tiles(p, work.targets.empty());
  CallLayout layout;
  layout.query_tiles = static_cast<int>(tiles_of(p.seq_q, shape.queries));
  layout.key_tiles = static_cast<int>(tiles_of(p.seq_kv, shape.keys));
  const auto all_of = [&](int tiles, std::optional<std::int64_t> tokens, int rows) {
    return static_cast<int>(work_tiles(p.batch, tiles, packs ? tokens : std::nullopt, rows));
  };
  layout.query_work_tiles = all_of(layout.query_tiles, p.tokens_q, shape.queries);
  layout.key_work_tiles = all_of(layout.key_tiles, p.tokens_kv, shape.keys);
  const std::int64_t tiles =
      packs ? std::max(layout.query_work_tiles, layout.key_work_tiles) : std::max(layout.query_tiles, layout.key_tiles);
  layout.heads_together = heads_together(tiles, forward ? work.problem.forward.mask : work.problem.backward->mask);
  if (!forward) {
    const std::int64_t rows =
        packs_queries(work) ? rows_of_work_tiles(work, layout, shape) : p.batch * p.heads_q * ((p.seq_q + 1) / 2 * 2);
    layout.add_workspace(&device::AttentionArguments::rows, static_cast<std::size_t>(2 * rows) * sizeof(float));
  }
  if (!apart) add_tables(layout, work, shape);
  add_states(layout, work);
  return layout;
}

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
                      const MaskWork& mask, const DeviceRates& rates, const TiledTimes& direct, bool small,
                      std::optional<std::uint32_t> loaded_bias) {
  const AttentionProblem& p = problem.problem;
  const NodeCosts costs = node_costs(program_of(problem, direction), false, loaded_bias);
  const MaskKnowledge knowledge = mask_knowledge(problem, direction);
  // Whole tiles are run, whatever part of them there is.
  const std::int64_t tiles = tiles_of(p.seq_q, shape.queries);
  const std::int64_t work = work_tiles(p.batch, tiles, p.tokens_q, shape.queries);
  const double tile_rows = static_cast<double>(p.heads_q * shape.queries);
  const double rows = static_cast<double>(work) * tile_rows;
  const double pairs = static_cast<double>(p.batch * tiles) * tile_rows *
                       static_cast<double>(tiles_of(p.seq_kv, shape.keys) * shape.keys);
  double products = direct.tiles * mask.run * pairs / kMeasuredPairs + direct.rows * rows / kMeasuredRows;
  const int parts = shape.value_parts;
  const auto dims = static_cast<double>(p.dim_qk + value_dims(shape, p.dim_v));
  products *= parts * (direct.dimless + (1 - direct.dimless) * dims / kMeasuredDims);
  if (small) products *= kSmallTiles;
  if (shape.holds_floats()) products *= kFloatProducts;
  if (std::max(p.dim_qk, p.dim_v) > 128) products *= direct.wide_heads;
  const double program =
      parts * direct.evaluations * (costs.value * mask.run + costs.keep * mask.partial) * pairs / kMeasuredPairs;
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

const MaskWork& SharedMaskWork::of(const Work& work, ScoreTile tile) const {
  std::call_once(once_, [&] { mask_ = kernels::mask_work(work.problem, work.direction, tile); });
  return mask_;
}

Prediction TiledVariant::time_from(const Work& work, const DeviceRates& rates, const TiledTimes& direct,
                                   bool small) const {
  const MaskWork& mask = mask_work(work);
  Prediction predicted =
      tiled_time(work.problem, work.direction, tile(), mask, rates, direct, small, traits().loaded_bias);
  if (!work.targets.empty()) predicted.milliseconds += gains_time(work.problem, work.targets, tile(), mask, rates);
  return predicted;
}

std::string TiledVariant::label(const Work&) const {
  return concat(traits().name, " kernels with tiles of ", tile().queries, "x", tile().keys);
}

void TiledVariant::write(CanonicalWriter& out) const {
  const auto& [warps, row_tiles, queries, keys, element_bytes, blocks, value_parts] = tile();
  const auto& [name, family, producers, step, part, key_step, stages, teams, value_groups, pack_gqa, persistent,
               separate_dv, fused, heads_take_turns, recomputed_delta, loaded_bias, key_bytes, key_stages, dq_order,
               ordered, split] = traits();
  for (const int number : {family, warps, row_tiles, queries, keys, step, part, key_step, element_bytes, key_bytes,
                           blocks, value_parts, dq_order, stages, key_stages, teams, value_groups})
    out.integer(number);
  for (const bool flag : {separate_dv, recomputed_delta, fused, heads_take_turns, persistent, ordered, split})
    out.boolean(flag);
  out.integer(loaded_bias ? static_cast<std::int64_t>(*loaded_bias) : -1);
}

}  // namespace scoremod::backend::kernels
