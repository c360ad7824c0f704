#include "backend/kernels/split_kv/family.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "backend/kernels/hopper/family.hpp"
#include "backend/kernels/shared/tile_time.hpp"
#include "backend/kernels/shared/tiled_variant.hpp"
#include "backend/measured_at.hpp"

namespace scoremod::backend::kernels {
namespace {

/// A family, in milliseconds.
struct Walk {
  double launch, rows;    ///< what a call takes beside its walks over keys, and for each row
  double keys, row_keys;  ///< of a block of kWarps alone for each million keys, and for each row of its tile
  double reached;         ///< of the memory's bandwidth
  /// The time of a persistent CTA for each tile of rows that it goes to. A team of a warpgroup waits for its rows of q
  /// as long as one of a warp does, but there are fewer (bench/results/decode_lengths.json).
  double next_tile;
  double next_ctas;  ///< the delay of CTAs that begin when others have ended, whose first loads run beside nothing
};
constexpr Walk kByWarps{0.005, 0, 7.25, 0.095, 0.885, 0.0007, 0.002},
    kByGroups{0.005, 7.7e-5, 7.7, 0, 0.911, 0.0037, 0.0045}, kWide{0.005, 7.7e-5, 8.2, 0, 0.911, 0.0007, 0.002};
constexpr double kWarps = 8;
/// The streamed kernel where sequences are so short that teams take whole tiles of rows: its loads are in flight all
/// the time.
constexpr Walk kStreamed{0.005, 0, 7.25, 0.095, 0.93, 0.0005, 0.002};
constexpr std::int64_t kShortSequences = 1024, kWholeTilesOfCta = 6;
bool takes_whole_tiles(const SplitKvShape& shape, const AttentionProblem& p) {
  return shape.streamed && p.seq_kv <= kShortSequences &&
         p.batch * p.heads_kv * split_kv_row_tiles(shape, p) >= kWholeTilesOfCta * shape.persistent_ctas;
}
const Walk& walk_of(const SplitKvShape& shape, const AttentionProblem& p) {
  return shape.wide ? kWide : shape.hopper ? kByGroups : takes_whole_tiles(shape, p) ? kStreamed : kByWarps;
}
/// The time of split CTAs: to store partials, for the last of a tile to merge them, and for each million rows.
constexpr double kMerge = 0.004, kMergeRows = 0.74;
/// Keys and values that are read again by other blocks at the same time come from the cache.
constexpr double kReadAgain = 0.6;
/// The time for CTAs of a persistent kernel to find their shares by the lengths.
constexpr double kShares = 0.003;
/// A persistent kernel's time beside that of split CTAs where all lengths are the same. A window makes even shares of
/// keys uneven work (bench/results/decode_lengths.json).
constexpr double kPersistent = 1.07, kPersistentOfPartialTiles = 1.7;
/// The longest sequence by the mean one, where lengths are in device memory. Below kLongContext keys no sequence is so
/// long that others' CTAs end much earlier. Above, one may take five times as long as even shares.
constexpr double kLongest = 1 / 0.75;
constexpr std::int64_t kLongContext = 16384;
/// A round of CTAs with so few keys each takes longer to begin than to read them.
constexpr std::int64_t kShortKeys = 128;
constexpr double kShortRound = 0.007;
/// How far arithmetic and memory hide each other: the sum is of their fourth powers.
constexpr double kHidden = 4;
/// hopper_wide_decode keeps up to 510 bytes in memory where keys are paged: in the tiles that a mask leaves in part,
/// one of a sequence's many.
constexpr std::int64_t kPartialTilesSpill = 640;

/// How often as many blocks as run at once follow each other, and how many there are in the end.
struct Rounds {
  double full, rest;

  Rounds(double blocks, double at_once) : full(std::floor(blocks / at_once)), rest(blocks - full * at_once) {}
  double count() const { return full + (rest > 0 ? 1 : 0); }
};

/// The dims of k and v that all launches read. There is one for each of the value_parts, which reads all of k and its
/// part of v; a wide shape has one for all parts.
double read_dims(const AttentionProblem& p, const SplitKvShape& shape) {
  return static_cast<double>((shape.wide ? 1 : shape.value_parts) * p.dim_qk + p.dim_v);
}

/// The time of the arithmetic, as if memory took none: `keys` are a CTA's.
double compute_time(const compiler::CompiledProblem& problem, const SplitKvShape& shape, const MaskWork& mask,
                    double keys, const Rounds& rounds, const DeviceRates& rates) {
  const AttentionProblem& p = problem.problem;
  const Walk& walk = walk_of(shape, p);
  const NodeCosts costs = node_costs(problem.forward.program, true);
  const bool listed = mask_knowledge(problem, Direction::kForward).kind == MaskKnowledge::Kind::kList;
  const double program = costs.value * mask.run + costs.keep * mask.partial + (listed ? costs.keep : 0);
  const double dims = read_dims(p, shape) / kMeasuredDims;
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
double even_shares(const compiler::CompiledProblem& problem) {
  const masks::MaskClass& mask = problem.forward.mask;
  const bool of_lengths_alone = (mask.kind != masks::MaskKind::kGeneral && mask.kind != masks::MaskKind::kDocuments) ||
                                mask_knowledge(problem, Direction::kForward).grows_with_query;
  const bool has_window = mask.band && mask.band->left;
  return of_lengths_alone && !has_window ? kPersistent : kPersistentOfPartialTiles;
}

/// The time of the memory, as if arithmetic took none.
double memory_time(const AttentionProblem& p, const SplitKvShape& shape, const MaskWork& mask,
                   const DeviceRates& rates) {
  const double rows = static_cast<double>(p.batch * p.heads_kv * p.seq_kv);
  const auto row_tiles = static_cast<double>(split_kv_row_tiles(shape, p));
  double of_row = shape.key_bytes * read_dims(p, shape);
  if (shape.row_scales) of_row += 2 * sizeof(float);
  double bytes = rows * of_row * mask.run * (1 + kReadAgain * (row_tiles - 1));
  // The part of a tile's rows that the problem fills.
  const std::int64_t packed_rows = p.heads_q / p.heads_kv * p.seq_q;
  const double filled = static_cast<double>(packed_rows) / (row_tiles * shape.queries);
  if (shape.splits > 1) bytes += 2 * filled * shape.value_parts * static_cast<double>(split_kv_part_bytes(shape, p));
  return bytes / (walk_of(shape, p).reached * rates.bytes_per_ms);
}

constexpr int kFewestSplits = 2;  ///< of a shape that has some

class SplitKvVariant final : public ShapedVariant<SplitKvShape> {
 public:
  using ShapedVariant::ShapedVariant;

  Prediction time(const Work& work, const DeviceRates& rates) const override {
    return split_kv_time(work.problem, shape(), mask_work(work), rates);
  }

  std::string label(const Work& work) const override {
    return concat(TiledVariant::label(work), shape().streamed              ? ", persistent, streamed"
                                             : shape().persistent_ctas > 0 ? ", persistent"
                                                                           : "");
  }
  cuda::Instructions instructions() const override {
    return shape().hopper ? cuda::Instructions::kOfArchitecture : cuda::Instructions::kCommon;
  }
  std::int64_t harmless_spill() const override { return shape().wide ? kPartialTilesSpill : kHarmlessSpill; }
  bool is_same(const Variant& other) const override {
    const auto* decode = dynamic_cast<const SplitKvVariant*>(&other);
    if (decode == nullptr || (decode->shape().splits > 1) != (shape().splits > 1)) return false;
    // How many splits is an argument of the kernels.
    SplitKvShape same = decode->shape();
    same.splits = shape().splits;
    return same == shape();
  }
  std::shared_ptr<const Variant> at_sizes_of(const Work& work, const DeviceProperties& device) const override {
    return split_kv_variant(split_kv_at_sizes(shape(), work.problem.problem, device.multiprocessors));
  }
  std::shared_ptr<const Variant> on_few_ctas() const override {
    SplitKvShape few = shape();
    if (few.persistent_ctas > 0)
      few.persistent_ctas = 1;
    else if (few.splits > kFewestSplits)
      few.splits = kFewestSplits;
    else
      return nullptr;
    return split_kv_variant(few);
  }

 protected:
  CallLayout family_layout(const Work& work) const override {
    const AttentionProblem& p = work.problem.problem;
    const bool hopper = shape().hopper, persistent = shape().persistent_ctas > 0;
    CallLayout layout;
    layout.query_tiles = static_cast<int>(split_kv_row_tiles(shape(), p));
    layout.key_tiles = static_cast<int>(tiles_of(p.seq_kv, shape().keys));
    layout.splits = shape().splits;
    layout.blocks = shape().persistent_ctas;
    // As many for each tile of rows.
    if (persistent && layout.query_tiles < layout.blocks) layout.blocks -= layout.blocks % layout.query_tiles;
    layout.tags_calls = shape().splits > 1 || persistent;
    // These kernels are memory-bound; others were measured with 256 only.
    if (hopper) layout.cache_lines = CacheLines::k128Bytes;
    if (shape().wide) layout.maps = pages_hold_boxes(p) ? Maps::kOptional : Maps::kUnused;
    const std::int64_t tiles = layout.query_tiles * p.batch * p.heads_kv;
    if (layout.tags_calls) {
      layout.add_workspace(&device::AttentionArguments::parts, split_kv_part_bytes(shape(), p));
      layout.add_workspace(&device::AttentionArguments::shares,
                           static_cast<std::size_t>(tiles) * sizeof(*device::AttentionArguments::shares));
    }
    const KernelLaunch launch{kernel(), persistent ? layout.blocks : tiles * shape().splits, shape().threads(),
                              split_kv_shared_bytes(shape(), p.dim_qk, p.dim_v), hopper};
    if (shape().wide)
      layout.add_launch(launch);
    else
      add_forward_launches(layout, launch, shape(), p.dim_v);
    return layout;
  }

  void fill(Holes& holes, const Work& work) const override {
    if (shape().hopper) fill_hopper(holes, work.problem.problem, work.direction, HopperShape{shape()});
  }
  KernelFiles files(Direction) const override {
    if (shape().wide) return {{}, {{"backend/kernels/split_kv/wide_decode.cuh"}}};
    const char* const file =
        shape().hopper ? "backend/kernels/split_kv/hopper_decode.cuh" : "backend/kernels/split_kv/decode.cuh";
    return {{}, {{shape().streamed ? "backend/kernels/split_kv/streamed_decode.cuh" : file, {kernel()}}}};
  }

 private:
  const char* kernel() const {
    const bool hopper = shape().hopper, persistent = shape().persistent_ctas > 0;
    return shape().wide           ? "hopper_wide_decode"
           : hopper && persistent ? "hopper_persistent_decode"
           : hopper               ? "hopper_split_kv_decode"
           : shape().streamed     ? "split_kv_streamed_decode"
           : persistent           ? "split_kv_persistent_decode"
                                  : "split_kv_decode";
  }
};

std::vector<UnsupportedReason> objections(const Work& work, const DeviceProperties* device) {
  std::vector<UnsupportedReason> reasons = tiled_objections(work, device, Float8::kKeys);
  if (!reasons.empty() || work.direction == Direction::kBackward) return reasons;
  return split_kv_objections(work.problem.problem);
}

/// The streamed shape of as many warps as the device's shared memory has room for.
SplitKvShape streamed_shape(const AttentionProblem& problem, const DeviceProperties& device) {
  SplitKvShape shape = streamed_split_kv_shape(kStreamedWarps, problem, device);
  const auto fits = [&] {
    return std::cmp_less_equal(split_kv_shared_bytes(shape, problem.dim_qk, problem.dim_v),
                               device.shared_memory_per_block);
  };
  while (shape.warps > 1 && !fits()) shape = streamed_split_kv_shape(shape.warps - 1, problem, device);
  return shape;
}

Variants variants(const Work& work, const DeviceProperties& device, std::vector<UnsupportedReason>& reasons) {
  if (work.direction == Direction::kBackward) return {};
  const AttentionProblem& problem = work.problem.problem;
  Variants found;
  const auto add = [&](const std::vector<SplitKvShape>& shapes) {
    for (const SplitKvShape& shape : shapes) found.push_back(split_kv_variant(shape));
  };
  add(split_kv_shapes(problem, device));
  add(persistent_split_kv_shapes(problem, device));
  if (has_lengths_in_memory(problem)) {
    const std::vector<UnsupportedReason> against = streamed_split_kv_objections(problem);
    reasons.insert(reasons.end(), against.begin(), against.end());
    if (against.empty()) add({streamed_shape(problem, device)});
  }
  if (problem.dim_v > kWidestHead && device.compute_capability == kHopperCapability) {
    const std::vector<UnsupportedReason> against = wide_split_kv_objections(problem);
    reasons.insert(reasons.end(), against.begin(), against.end());
    if (against.empty()) found.push_back(split_kv_variant(wide_split_kv_shape(problem, device.multiprocessors)));
  }
  if (!hopper_objections(problem, work.direction, device.compute_capability).empty()) return found;
  const std::vector<UnsupportedReason> against = hopper_split_kv_objections(problem);
  reasons.insert(reasons.end(), against.begin(), against.end());
  if (!against.empty()) return found;
  add(hopper_split_kv_shapes(problem, device.multiprocessors));
  if (has_lengths_in_memory(problem)) add({persistent_hopper_split_kv_shape(problem, device.multiprocessors)});
  return found;
}

}  // namespace

Prediction split_kv_time(const compiler::CompiledProblem& problem, const SplitKvShape& shape, const MaskWork& mask,
                         const DeviceRates& rates) {
  const AttentionProblem& p = problem.problem;
  const Walk& walk = walk_of(shape, p);
  const bool persistent = shape.persistent_ctas > 0;
  const auto tiles = static_cast<double>(p.batch * p.heads_kv * split_kv_row_tiles(shape, p));
  const double blocks = persistent ? shape.persistent_ctas : tiles * shape.splits;
  const Rounds rounds(blocks, rates.multiprocessors * shape.blocks);
  const double keys = static_cast<double>(p.seq_kv) * tiles / blocks;
  // CTAs of the longest sequence go on when others have ended: all take as long as if every sequence were as long.
  const bool whole = takes_whole_tiles(shape, p);
  const double uneven = whole ? 1 : persistent ? even_shares(problem) : longest_by_mean(p);
  const double compute = compute_time(problem, shape, mask, keys, rounds, rates) * uneven;
  const double memory = memory_time(p, shape, mask, rates) * uneven;
  const auto rows = static_cast<double>(std::min<std::int64_t>(p.heads_q / p.heads_kv * p.seq_q, shape.queries));
  double beside = walk.launch + walk.rows * rows + (rounds.count() - 1) * walk.next_ctas;
  if (persistent) beside += kShares + walk.next_tile * tiles / blocks;
  if (!persistent && p.paged && p.seq_kv <= kShortKeys) beside += (rounds.count() - 1) * kShortRound;
  if (shape.splits > 1 || (persistent && !whole))
    beside += kMerge + kMergeRows * static_cast<double>(p.batch * p.heads_q * p.seq_q) / 1e6;
  std::string source = "scaled from measured kernels";
  if (rates != kMeasuredOn) source += "; scaled to this device's multiprocessors, clock and memory";
  return {beside + std::pow(std::pow(compute, kHidden) + std::pow(memory, kHidden), 1 / kHidden), std::move(source)};
}

const KernelFamily kSplitKvFamily{"split_kv", objections, variants};

KernelTraits SplitKvShape::traits() const {
  KernelTraits traits{.name = hopper ? "hopper split-KV" : "split-KV",
                      .family = wide       ? 5
                                : hopper   ? 3
                                : streamed ? 6
                                           : 2};
  traits.value_groups = wide ? value_parts : 1;
  traits.producers = producers();
  traits.pack_gqa = true;
  traits.teams = teams;
  traits.stages = stages;
  traits.persistent = persistent_ctas > 0;
  traits.key_bytes = key_bytes;
  traits.split = splits > 1;
  return traits;
}

std::shared_ptr<const TiledVariant> split_kv_variant(const SplitKvShape& shape) {
  return std::make_shared<const SplitKvVariant>(shape);
}

}  // namespace scoremod::backend::kernels
