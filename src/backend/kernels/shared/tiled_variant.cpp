#include "backend/kernels/shared/tiled_variant.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "backend/cuda/text/program_source.hpp"
#include "backend/unsupported.hpp"
#include "base/fail.hpp"
#include "problem/implied_operands.hpp"
#include "problem/problem_topics.hpp"

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

std::int64_t padded(std::int64_t dim) { return (dim + 15) / 16 * 16; }

/// Copies to shared memory that run beside other work, and the products of matrices, begin with it.
constexpr int kOldestCapability = 80;
/// Four rows of row terms or four tiles' states share a CTA.
constexpr std::int64_t kRowsOfBlock = 4;

}  // namespace

std::int64_t tiles_of(std::int64_t size, std::int64_t tile) { return (size + tile - 1) / tile; }

std::int64_t work_tiles(std::int64_t batch, std::int64_t tiles, std::optional<std::int64_t> packed_tokens,
                        std::int64_t rows) {
  return packed_tokens ? *packed_tokens / rows + batch : batch * tiles;
}

bool packs_tiles(const AttentionProblem& problem, bool has_no_targets) {
  return (problem.tokens_q || problem.tokens_kv) && has_no_targets;
}

std::optional<std::int64_t> written_tokens(const Work& work) {
  const AttentionProblem& p = work.problem.problem;
  return work.direction == Direction::kForward ? p.tokens_q : std::max(p.tokens_q, p.tokens_kv);
}

int value_parts_of(std::int64_t dim_v) { return static_cast<int>((dim_v + kWidestHead - 1) / kWidestHead); }

std::int64_t value_dims(const TileShape& shape, std::int64_t dim_v) {
  return shape.value_parts == 1 ? dim_v : padded((dim_v + shape.value_parts - 1) / shape.value_parts);
}

void add_forward_launches(CallLayout& layout, const KernelLaunch& launch, const TileShape& shape, std::int64_t dim_v) {
  const std::int64_t dims = value_dims(shape, dim_v);
  for (int part = 0; part < shape.value_parts; ++part) {
    layout.add_launch(launch);
    // The last part begins where it ends with v: it may write dims again, as they are.
    layout.launches().back().first_value = static_cast<int>(std::min(part * dims, dim_v - dims));
  }
}

std::vector<UnsupportedReason> problem_objections(const compiler::CompiledProblem& compiled, Direction direction,
                                                  Float8 float8) {
  // Every member is named: one that is added does not compile until it is run or refused here.
  static_assert(problem::kAllTopics<Sequences, TensorDTypes, TensorLayouts, SoftmaxOptions, OutputOptions,
                                    BackwardOptions, ScoreProgram>);
  const AttentionProblem& problem = compiled.problem;
  [[maybe_unused]] const auto& [batch, heads_q, heads_kv, seq_q, seq_kv, dim_qk, dim_v, tokens_q, tokens_kv, paged,
                                lengths, index_offsets] = problem::topic<Sequences>(problem);
  [[maybe_unused]] const auto& [dtype, dtype_kv, dtype_o, dtype_d_o, dtype_gradients] =
      problem::topic<TensorDTypes>(problem);
  [[maybe_unused]] const auto& [q, k, v, o, d_o, dq, dk, dv] = problem::topic<TensorLayouts>(problem);
  [[maybe_unused]] const auto& [scale, sink, dropout, dropout_keys] = problem::topic<SoftmaxOptions>(problem);
  [[maybe_unused]] const auto& [stats, max_logit, amax_o] = problem::topic<OutputOptions>(problem);
  [[maybe_unused]] const auto& [backward, given_deltas, deterministic, amax_gradients] =
      problem::topic<BackwardOptions>(problem);
  [[maybe_unused]] const auto& [program, operands] = problem::topic<ScoreProgram>(problem);
  std::vector<UnsupportedReason> reasons;
  if ((is_float8(dtype) && float8 != Float8::kAll) || (dtype_kv && float8 != Float8::kKeys))
    reasons.push_back(unsupported(
        Rule::kDtype, concat("expected q, k and v in f32, f16 or bf16, found ", to_string(dtype_kv.value_or(dtype)))));
  // Kernels that read FP8 keys multiply scores and weights by scales of rows.
  if (float8 != Float8::kKeys || !problem::has_row_scales(problem)) object_to_block_scales(problem, reasons);
  if (const std::int64_t widest = widest_head(direction); dim_qk > widest || dim_v > widest) {
    reasons.push_back(unsupported(Rule::kHeadDim, concat("expected head dims of at most ", widest, ", found ", dim_qk,
                                                         " of q and k and ", dim_v, " of v")));
  }
  const std::size_t nodes =
      compiled.backward ? compiled.backward->program.nodes().size() : compiled.forward.program.nodes().size();
  if (nodes > cuda::kMaxKernelNodes || operands.size() > kMaxOperands) {
    reasons.push_back(unsupported(Rule::kEngineRefused,
                                  concat("expected at most ", cuda::kMaxKernelNodes, " nodes and ", kMaxOperands,
                                         " operands of a kernel, found ", nodes, " and ", operands.size())));
  }
  // CTAs are numbered in 31 bits, and so are positions; the smallest tiles have 32 rows, and four rows share a CTA.
  const std::int64_t longest = std::max({seq_q, seq_kv, tokens_q.value_or(0), tokens_kv.value_or(0)}),
                     most = std::numeric_limits<std::int32_t>::max();
  const std::int64_t rows = batch * heads_q * (std::max(seq_q, seq_kv) + 64);
  if (rows / kRowsOfBlock > most || longest > most / 2) {
    reasons.push_back(unsupported(Rule::kEngineRefused,
                                  concat("expected fewer than 2^33 rows of queries or keys, found batch ", batch,
                                         ", heads ", heads_q, ", seq_q ", seq_q, " and seq_kv ", seq_kv)));
  }
  return reasons;
}

std::vector<UnsupportedReason> device_objections(const DeviceProperties& device) {
  if (device.compute_capability >= kOldestCapability) return {};
  return {
      unsupported(Rule::kEngineRefused, concat("expected a device of compute capability 8.0 or later, found ",
                                               device.compute_capability / 10, ".", device.compute_capability % 10))};
}

std::vector<UnsupportedReason> tiled_objections(const Work& work, const DeviceProperties* device, Float8 float8) {
  std::vector<UnsupportedReason> reasons = problem_objections(work.problem, work.direction, float8);
  if (reasons.empty() && device != nullptr) return device_objections(*device);
  return reasons;
}

std::vector<UnsupportedReason> memory_objections(const std::vector<KernelLaunch>& launches,
                                                 const DeviceProperties& device) {
  std::size_t wanted = 0;
  for (const KernelLaunch& launch : launches) wanted = std::max(wanted, launch.shared_bytes);
  if (wanted <= static_cast<std::size_t>(device.shared_memory_per_block)) return {};
  return {unsupported(Rule::kEngineRefused,
                      concat("expected ", wanted, " bytes of shared memory, found ", device.shared_memory_per_block))};
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
