#include "backend/kernels/hopper/family.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "backend/cuda/text/kernel_text.hpp"
#include "backend/kernels/family.hpp"
#include "backend/kernels/operand_gradients/operand_gradients.hpp"
#include "backend/kernels/shared/tiled_variant.hpp"
#include "base/canonical_bytes.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::kernels {
namespace {

constexpr std::string_view kTiles = "backend/kernels/hopper/tiles.cuh";

/// `count` numbers of registers in an instruction, from `first` on.
std::string register_numbers(std::int64_t first, std::int64_t count) {
  std::string text;
  for (std::int64_t i = 0; i < count; ++i) text += concat(i == 0 ? "%" : ", %", first + i);
  return text;
}

constexpr int kWarpThreads = 32;
/// The producers of hopper_backward_wide have 24 registers, and keep 100 to 128 bytes in memory. They use them once for
/// a step of 64 queries.
constexpr std::int64_t kProducersSpill = 160;
/// At head dim 64 hopper_persistent_backward keeps up to 132 bytes in memory, and is faster all the same
/// (bench/NOTES.md).
constexpr std::int64_t kItemsSpill = 256;
constexpr TiledTimes kForwardTimes{0.765, 0.075, 0.29, 1.03, 0.96, 0.006, 1},
    kBackwardTimes{2.5, 0.25, 0.26, 2.5, 1, 0.016, 2};
/// The widest heads of hopper_persistent_backward: wider ones lose more in each step than short columns gain.
constexpr std::int64_t kWidestPersistent = 64;
/// Gradients are the same bits from call to call unless that takes so much longer.
constexpr double kOrderWorth = 1.05;

/// How much longer a forward's uneven rows take with has_narrow_heads(), beside those of wider heads: causal
/// against full in bench/results/peers.json.
constexpr double kNarrowUneven = 1.07;
/// The part of the memory's bandwidth that reads and additions out of step reach, and the L2 cache that they share.
constexpr double kReachedOutOfStep = 0.75, kL2Bytes = 50e6;

/// How much longer a fused backward takes than with one head for each KV head, if the heads of a group take turns.
/// Measured on an H100, bench/NOTES.md: under a causal mask, and in a window, where heads one after the other are in
/// step anyway.
constexpr double kTurnsOfUneven = 1, kTurnsOfEven = 1.6;

/// The time of a fused backward's traffic where a KV head's CTAs are out of step. Each walks over one query head of
/// its group after the other. Under an uneven mask some walk faster than others, so that q, d_o and dq come from memory
/// and not from L2. Of all tiles' traffic (group - 1) / (group + 1) was seen to come from there, of groups of 4 and 8
/// (bench/NOTES.md).
double group_traffic_time(const AttentionProblem& p, const MaskWork& mask, const DeviceRates& rates) {
  const double group = static_cast<double>(p.heads_q) / static_cast<double>(p.heads_kv);
  if (!mask.uneven || group == 1) return 0;
  constexpr double kTile = 128, kElement = 2, kReadAndAdded = 2 * sizeof(float);
  const double rows = static_cast<double>(p.batch * p.heads_q * p.seq_q);
  const double row_bytes =
      kElement * static_cast<double>(p.dim_qk + p.dim_v) + kReadAndAdded * static_cast<double>(p.dim_qk);
  const double key_tiles = mask.run * static_cast<double>(p.seq_kv) / kTile;
  const double missed = (group - 1) / (group + 1) * std::max(0.0, 1 - kL2Bytes / (rows * row_bytes));
  return missed * rows * row_bytes * key_tiles / (kReachedOutOfStep * rates.bytes_per_ms);
}

/// Whether heads share KV heads, and nothing wants a head's steps in a row.
bool may_take_turns(const Work& work) {
  const AttentionProblem& p = work.problem.problem;
  return p.heads_q > p.heads_kv && work.targets.empty() &&
         !mask_knowledge(work.problem, work.direction).varies_with_head;
}

class HopperVariant final : public ShapedVariant<HopperShape> {
 public:
  using ShapedVariant::ShapedVariant;

  Prediction time(const Work& work, const DeviceRates& rates) const override {
    const bool forward = work.direction == Direction::kForward;
    const TiledTimes& direct = forward ? kForwardTimes : shape().fused ? kHopperFusedTimes : kBackwardTimes;
    Prediction predicted = time_from(work, rates, direct, is_small(work));
    if (is_persistent()) predicted.milliseconds *= persistent_time_part(work, mask_work(work));
    if (forward && has_narrow_heads(work.problem.problem) && mask_work(work).uneven)
      predicted.milliseconds *= kNarrowUneven;
    if (shape().ordered) predicted.milliseconds *= ordered_time_part(mask_work(work));
    if (!shape().fused) return predicted;
    const MaskWork& mask = mask_work(work);
    if (shape().turn_ctas > 0)
      predicted.milliseconds *= mask.uneven ? kTurnsOfUneven : kTurnsOfEven;
    else
      predicted.milliseconds = std::max(predicted.milliseconds, group_traffic_time(work.problem.problem, mask, rates));
    predicted.milliseconds *= kOrderWorth;
    predicted.source += concat("; times ", kOrderWorth, ", for gradients in no fixed order");
    return predicted;
  }

  std::int64_t harmless_spill() const override {
    return is_wide() ? kProducersSpill : shape().fused && is_persistent() ? kItemsSpill : kHarmlessSpill;
  }
  std::string label(const Work& work) const override {
    const auto& operands = work.problem.problem.program.operands();
    const auto& bias = shape().loaded_bias;
    return concat(TiledVariant::label(work), is_persistent() ? ", persistent" : "",
                  shape().ordered ? ", the longest rows first" : "",
                  bias ? concat(", tiles of ", operands[*bias].name, " copied") : "",
                  shape().fused ? ", dq added up beside dk and dv" : "",
                  shape().turn_ctas > 0 ? ", heads of a KV head in turns" : "");
  }
  cuda::Instructions instructions() const override { return cuda::Instructions::kOfArchitecture; }

  std::shared_ptr<const Variant> at_sizes_of(const Work& work, const DeviceProperties&) const override {
    // Sizes decide whether TMA can load a bias, and whether heads take turns; all else follows from the structure.
    const bool hangs_on_sizes = shape().loaded_bias || !work.targets.empty();
    if (hangs_on_sizes || (shape().turn_ctas > 0 && !may_take_turns(work))) return nullptr;
    return hopper_variant(shape());
  }
  std::shared_ptr<const Variant> on_few_ctas() const override {
    if (!is_persistent()) return nullptr;
    HopperShape few = shape();
    few.persistent_ctas = 1;
    return hopper_variant(few);
  }

 protected:
  CallLayout family_layout(const Work& work) const override {
    CallLayout layout = tiled_layout(work, shape());
    layout.loaded_bias = shape().loaded_bias;
    if (shape().heads_together > 0) layout.heads_together = shape().heads_together;
    if (shape().ordered) add_tile_order(layout, work, shape().fused ? layout.key_tiles : layout.query_tiles);
    if (work.direction == Direction::kForward)
      add_forward(layout, work);
    else if (shape().fused)
      add_fused(layout, work);
    else
      add_backward(layout, work);
    add_gains(layout, work, shape(), shape().fused);
    return layout;
  }

  KernelFiles files(Direction direction) const override {
    if (direction == Direction::kForward) {
      return {
          {},
          {{"backend/kernels/hopper/forward.cuh", {is_persistent() ? "hopper_persistent_forward" : "hopper_forward"}}}};
    }
    constexpr const char *kRows = "backend/kernels/shared/derivative.cuh",
                         *kKeys = "backend/kernels/hopper/backward_keys.cuh",
                         *kFused = "backend/kernels/hopper/backward_fused.cuh",
                         *kWide = "backend/kernels/hopper/backward_wide.cuh";
    if (shape().fused)
      return {{{kRows, {"attention_backward_rows"}}, {kFused, {"hopper_write_queries"}}},
              {{is_wide() ? kWide : kFused, {fused_kernel()}}}};
    KernelFiles files{{{kRows, {"attention_backward_rows"}}, {"backend/kernels/hopper/backward_queries.cuh"}},
                      {{kKeys, {"hopper_backward_keys"}}}};
    if (shape().separate_dv) files.large.push_back({kKeys, {"hopper_backward_values"}});
    return files;
  }

  void fill(Holes& holes, const Work& work) const override {
    fill_hopper(holes, work.problem.problem, work.direction, shape());
  }

 private:
  bool is_small(const Work& work) const {
    if (is_persistent() || shape().fused || shape().ordered || shape().loaded_bias) return false;
    return shape() != hopper_shapes(work.problem.problem, work.direction).front();
  }

  /// Whether a fused backward has the scores of half a step at once.
  bool is_wide() const { return shape().part < shape().step; }
  bool is_persistent() const { return shape().persistent_ctas > 0; }
  const char* fused_kernel() const {
    return is_wide()         ? "hopper_backward_wide"
           : is_persistent() ? "hopper_persistent_backward"
                             : "hopper_backward_fused";
  }

  void add_forward(CallLayout& layout, const Work& work) const {
    const AttentionProblem& p = work.problem.problem;
    KernelLaunch forward{"hopper_forward", layout.query_work_tiles * p.heads_q, shape().threads(),
                         hopper_forward_storage(shape(), p.dim_qk, p.dim_v).bytes, true};
    if (is_persistent()) {
      const MaskKnowledge mask = mask_knowledge(work.problem, work.direction);
      layout.add_workspace(&device::AttentionArguments::taken, sizeof(int));
      // The kernel that finds states counts from 0 anew too.
      if (!mask.has_states() || mask.same_in_every_call) layout.add_launch({"hopper_begin_items", 1, kWarpThreads, 0});
      forward.kernel = "hopper_persistent_forward";
      forward.blocks = std::min<std::int64_t>(forward.blocks, shape().persistent_ctas);
      layout.blocks = static_cast<int>(forward.blocks);
    }
    layout.add_launch(std::move(forward));
  }

  void add_backward(CallLayout& layout, const Work& work) const {
    const AttentionProblem& p = work.problem.problem;
    layout.add_launch(row_terms_launch(work, layout, shape()));
    layout.add_launch({"hopper_backward_queries", layout.query_work_tiles * p.heads_q, shape().threads(),
                       hopper_queries_storage(shape(), p, has_differences(work.targets)).bytes, true});
    KernelLaunch keys{"hopper_backward_keys", layout.key_work_tiles * p.heads_kv, shape().threads(),
                      hopper_keys_storage(shape(), p).bytes, true};
    layout.add_launch(keys);
    keys.kernel = "hopper_backward_values";
    if (shape().separate_dv) layout.add_launch(keys);
  }

  void add_fused(CallLayout& layout, const Work& work) const {
    const AttentionProblem& p = work.problem.problem;
    const std::int64_t tiles = layout.query_work_tiles * p.heads_q;
    layout.blocks = shape().turn_ctas;
    layout.add_workspace(&device::AttentionArguments::query_sums, hopper_query_sums_bytes(shape(), p, tiles));
    layout.add_launch(row_terms_launch(work, layout, shape(), true));
    KernelLaunch fused{fused_kernel(), layout.key_work_tiles * p.heads_kv, shape().threads(),
                       hopper_keys_storage(shape(), p, has_differences(work.targets)).bytes, true};
    if (is_persistent()) {
      layout.add_workspace(&device::AttentionArguments::taken, sizeof(int));
      fused.blocks = std::min<std::int64_t>(fused.blocks, shape().persistent_ctas);
      layout.blocks = static_cast<int>(fused.blocks);
    }
    layout.add_launch(std::move(fused));
    const device::SwizzledTile q_tile{shape().queries, static_cast<int>(p.dim_qk)};
    layout.add_launch(
        {"hopper_write_queries", tiles, shape().consumer_threads(), static_cast<std::size_t>(q_tile.bytes)});
  }
};

std::vector<UnsupportedReason> objections(const Work& work, const DeviceProperties* device) {
  std::vector<UnsupportedReason> reasons = tiled_objections(work, device);
  if (!reasons.empty() || device == nullptr) return reasons;
  return hopper_objections(work.problem.problem, work.direction, device->compute_capability);
}

Variants of_shapes(const std::vector<HopperShape>& shapes) {
  const auto mask = std::make_shared<const SharedMaskWork>();
  Variants found;
  for (const HopperShape& shape : shapes) found.push_back(std::make_shared<const HopperVariant>(shape, mask));
  return found;
}

void append(Variants& to, Variants more) { to.insert(to.end(), more.begin(), more.end()); }

/// Backwards that add dq up in no fixed order, the one with a TMA-loaded bias before the other. They are there whatever
/// the sizes, for a trial at others.
Variants fused_variants(const Work& work, const DeviceProperties& device, std::vector<UnsupportedReason>& reasons) {
  const AttentionProblem& problem = work.problem.problem;
  Variants found;
  const auto add = [&](const HopperShape& shape) {
    const std::vector<UnsupportedReason> against = hopper_fused_objections(problem, shape, work.targets);
    reasons.insert(reasons.end(), against.begin(), against.end());
    if (!against.empty()) return;
    const Variants one = of_shapes({shape});
    found.insert(found.begin(), one.begin(), one.end());
  };
  if (may_take_turns(work) && device.multiprocessors > 0) {
    HopperShape turns = hopper_fused_shape(problem);
    turns.turn_ctas = static_cast<int>(device.multiprocessors);
    add(turns);
  }
  const bool may_persist = work.targets.empty() && problem.dim_qk <= kWidestPersistent && device.multiprocessors > 0;
  if (may_persist) add(persistent_fused_shape(problem, device.multiprocessors));
  add(hopper_fused_shape(problem));
  if (const auto operand = loaded_bias(problem, work.direction)) add(copying_fused_shape(problem, *operand));
  return found;
}

Variants backward_variants(const Work& work, const DeviceProperties& device, std::vector<UnsupportedReason>& reasons) {
  Variants found = fused_variants(work, device, reasons);
  std::vector<HopperShape> shapes = hopper_shapes(work.problem.problem, work.direction);
  if (has_differences(work.targets))
    std::erase_if(shapes, [](const HopperShape& shape) { return shape.key_step > kMaxDiagonalStep; });
  append(found, of_shapes(shapes));
  return found;
}

Variants variants(const Work& work, const DeviceProperties& device, std::vector<UnsupportedReason>& reasons) {
  if (work.direction == Direction::kBackward) return backward_variants(work, device, reasons);
  const AttentionProblem& problem = work.problem.problem;
  std::vector<HopperShape> shapes = hopper_shapes(problem, work.direction);
  if (device.multiprocessors > 0) shapes.push_back(persistent_hopper_shape(problem, device.multiprocessors));
  const std::vector<HopperShape> ordered = ordered_hopper_shapes(work.problem, shapes);
  if (const auto operand = loaded_bias(problem, work.direction))
    shapes.push_back(copying_hopper_shape(problem, *operand));
  Variants found = of_shapes(shapes);
  append(found, of_shapes(ordered));
  return found;
}

}  // namespace

std::string product_text(std::string_view file, std::string_view name, std::int64_t columns, std::string_view type) {
  // A thread has half as many sums.
  const std::int64_t sums = columns / 2;
  std::string operands;
  for (std::int64_t i = 0; i < sums; ++i) operands += concat(i == 0 ? "" : ", ", "\"+f\"(d[", i / 4, "][", i % 4, "])");
  return cuda::fill(cuda::part(cuda::file_text(file), name), {{"columns", columns},
                                                              {"type", type},
                                                              {"sums", register_numbers(0, sums)},
                                                              {"operands", operands},
                                                              {"quad", register_numbers(sums, 4)},
                                                              {"r0", register_numbers(sums, 1)},
                                                              {"r1", register_numbers(sums + 1, 1)},
                                                              {"r2", register_numbers(sums + 2, 1)},
                                                              {"r4", register_numbers(sums + 4, 1)},
                                                              {"r5", register_numbers(sums + 5, 1)}});
}

void fill_hopper_settings(Holes& holes, const AttentionProblem& problem, const HopperShape& shape, int query_stages) {
  static constexpr std::array<const char*, 3> kDqOrders{"kFenceAtOnce", "kLateFence", "kEarlyAdditions"};
  holes.set("key_stages", shape.key_stages);
  holes.set("box_rows", box_rows_of(problem));
  holes.set("query_stages", query_stages);
  holes.set("loads_bias", shape.loaded_bias ? "true" : "false");
  holes.set("dq_order", kDqOrders[static_cast<std::size_t>(shape.dq_order)]);
}

void fill_hopper(Holes& holes, const AttentionProblem& problem, Direction direction, const HopperShape& shape) {
  fill_hopper_settings(holes, problem, shape, hopper_query_stages(shape, problem.dim_qk, problem.dim_v));
  const std::string_view type = problem.dtype == DType::kBF16 ? "bf16.bf16" : "f16.f16";
  std::string products;
  CanonicalWriter from;
  from.integer(static_cast<std::int64_t>(problem.dtype));
  for (const std::int64_t columns : hopper_product_columns(problem, direction, shape)) {
    products += product_text(kTiles, "product", columns, type);
    from.integer(columns);
  }
  holes.set_long("product", std::move(products), from.written());
}

const KernelFamily kHopperFamily{"hopper", objections, variants};

KernelTraits HopperShape::traits() const {
  KernelTraits traits{.name = "hopper", .family = 1};
  traits.producers = kProducers;
  traits.step = step;
  traits.part = part;
  traits.key_step = key_step;
  traits.stages = stages;
  traits.persistent = persistent_ctas > 0;
  traits.separate_dv = separate_dv;
  traits.fused = fused;
  traits.heads_take_turns = turn_ctas > 0;
  traits.loaded_bias = loaded_bias;
  traits.key_stages = key_stages;
  traits.dq_order = static_cast<int>(dq_order);
  traits.ordered = ordered;
  return traits;
}

std::shared_ptr<const TiledVariant> hopper_variant(const HopperShape& shape) {
  return std::make_shared<const HopperVariant>(shape);
}

}  // namespace scoremod::backend::kernels
