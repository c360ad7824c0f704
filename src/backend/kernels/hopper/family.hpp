#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "scoremod/problem.hpp"

#include "backend/kernels/family.hpp"
#include "backend/kernels/shared/tiled_variant.hpp"
#include "backend/plan.hpp"

namespace scoremod::backend::kernels {

/// The compute capability of the devices that have WGMMA, 9.0.
inline constexpr int kHopperCapability = 90;
/// Kernels of WGMMA and TMA, for sm_90 alone.
extern const KernelFamily kHopperFamily;
/// The times of a backward that adds dq up beside dk and dv: five MMAs in place of seven hide more of the program.
/// The factor of head dims above 128 was measured on an H100 (bench/NOTES.md).
inline constexpr TiledTimes kHopperFusedTimes{1.92, 0.245, 0.22, 1.4, 1, 0.016, 0.54};

/// The order in which a step of a `fused` backward issues fence.proxy.async for the gradients in shared memory and adds
/// to dq.
enum class DqOrder : std::uint8_t {
  kFenceAtOnce,     ///< the fence follows the writes, and dq's WGMMA those of dv and dk
  kLateFence,       ///< the fence stands between these, so that it waits for additions beside the WGMMAs of dv and dk
  kEarlyAdditions,  ///< dq's WGMMA comes first, so that additions begin beside those of dv and dk
};

/// The shape of Hopper kernels of either direction.
struct HopperShape : TileShape {
  int stages = 2;  ///< of the TMA pipeline of a forward, and of the kernel of dk and dv

  /// CTAs of a persistent forward or fused backward, as many as the device has SMs; 0 for one CTA for each tile. The
  /// number is an argument of the kernels, but whether it is 0 is compiled in.
  int persistent_ctas = 0;
  /// The number of the bias whose tiles TMA loads in a forward and a fused backward, as those of k and v, or of q and
  /// d_o. It varies along queries and keys (loaded_bias()).
  std::optional<std::uint32_t> loaded_bias = std::nullopt;
  /// Longest-first scheduling of rows of tiles (of a fused backward, columns), see add_tile_order(). It adds a launch
  /// and changes no text.
  bool ordered = false;
  /// Heads whose CTAs take turns, so that the last CTAs of all have short rows of tiles: an argument of the kernels.
  /// With 0 they are those of tiled_layout().
  int heads_together = 0;

  // Backwards alone have the rest.
  int step = 32;       ///< queries that the kernel of dk and dv loads at once
  int part = 32;       ///< of these: queries whose scores it has at once
  int key_step = 32;   ///< keys that the kernel of dq takes at once
  int key_stages = 2;  ///< of the pipeline of the kernel of dq
  bool fused = false;  ///< the kernel of dk and dv adds dq up too, in no fixed order
  DqOrder dq_order = DqOrder::kFenceAtOnce;
  /// Separate kernels write dk and dv: the accumulators of both would not fit into the registers.
  bool separate_dv = false;
  /// The CTAs that a device runs at once, if heads that share a KV head take turns in a `fused` backward. It is 0 if
  /// they come one after the other. See kHeadsTakeTurns of shared/elements.cuh. The number is an argument of the
  /// kernels, but whether it is 0 is compiled in.
  int turn_ctas = 0;

  /// The threads of a CTA's producer warpgroup.
  static constexpr int kProducers = 128;
  int threads() const { return consumer_threads() + kProducers; }
  KernelTraits traits() const;
  bool operator==(const HopperShape&) const = default;
};

std::shared_ptr<const TiledVariant> hopper_variant(const HopperShape& shape);

/// The shapes of Hopper kernels to build, whatever the lengths: the one that was fastest on an H200, and one that takes
/// fewer registers. ptxas serializes the WGMMAs of the first with some programs.
std::vector<HopperShape> hopper_shapes(const AttentionProblem& problem, Direction direction);

/// The first of hopper_shapes() of a forward as a persistent kernel, whatever the lengths.
HopperShape persistent_hopper_shape(const AttentionProblem& problem, std::int64_t multiprocessors);

/// Whether head dims are at most 64.
bool has_narrow_heads(const AttentionProblem& problem);

/// The expected time of a persistent kernel, as a part of that of one CTA for each tile of queries, or in a backward of
/// keys. Below 1 it is what runs; otherwise only autotuning may choose it.
double persistent_time_part(const Work& work, const MaskWork& mask);

/// The shapes of these forwards with longest-first scheduling. They are candidates if the program alone says that few
/// rows are much longer than the others, whatever the lengths.
std::vector<HopperShape> ordered_hopper_shapes(const compiler::CompiledProblem& problem,
                                               std::span<const HopperShape> shapes);
/// The expected time of rows in that order, as a part of that of rows as they are.
double ordered_time_part(const MaskWork& mask);

/// The bias that a forward of hopper_shapes(), or a fused backward, can load by TMA: one with a number for each query
/// and key, in q's dtype. Its rows must begin at multiples of 16 bytes, and keys be whole tiles, so that a trial's rows
/// are aligned too. There is none if shared memory has no room for its tiles. A forward has two; a backward has one, of
/// which each warpgroup reads half at its own time.
std::optional<std::uint32_t> loaded_bias(const AttentionProblem& problem, Direction direction);
/// The shape of a forward that loads it.
HopperShape copying_hopper_shape(const AttentionProblem& problem, std::uint32_t operand);

/// The shape of a fused backward, whose kernel of dk and dv computes dq too, of a persistent one, and of one that loads
/// loaded_bias() by TMA.
HopperShape hopper_fused_shape(const AttentionProblem& problem);
HopperShape persistent_fused_shape(const AttentionProblem& problem, std::int64_t multiprocessors);
HopperShape copying_fused_shape(const AttentionProblem& problem, std::uint32_t operand);
/// Why there are no kernels of such a shape, with the gradients of these operands beside, where there are Hopper
/// kernels; empty where there are.
std::vector<UnsupportedReason> hopper_fused_objections(const AttentionProblem& problem, const HopperShape& shape,
                                                       std::span<const OperandTarget> targets = {});

/// Why there are no Hopper kernels for what there are portable ones for, on a device of this compute capability; empty
/// where there are.
std::vector<UnsupportedReason> hopper_objections(const AttentionProblem& problem, Direction direction,
                                                 int compute_capability);

/// Stages of q tiles in the forward: two if the kernel is persistent and these fit.
int hopper_query_stages(const HopperShape& shape, std::int64_t dim_qk, std::int64_t dim_v);

/// The most shared memory of a CTA, in bytes.
inline constexpr std::size_t kHopperSharedBytes = std::size_t{227} * 1024;

/// The shared memory of a CTA of the forwards, of the kernel of dq, and of those of dk and dv. `has_diagonals` if
/// gradients are summed along diagonals beside.
device::HopperForwardStorage hopper_forward_storage(const HopperShape& shape, std::int64_t dim_qk, std::int64_t dim_v);
device::HopperQueriesStorage hopper_queries_storage(const HopperShape& shape, const AttentionProblem& problem,
                                                    bool has_diagonals = false);
device::HopperKeysStorage hopper_keys_storage(const HopperShape& shape, const AttentionProblem& problem,
                                              bool has_diagonals = false);
/// The size of the sums of dq in a call's workspace, of so many tiles of queries.
std::size_t hopper_query_sums_bytes(const HopperShape& shape, const AttentionProblem& problem, std::int64_t tiles);

/// The numbers of columns that the kernels' products have, each once.
std::vector<std::int64_t> hopper_product_columns(const AttentionProblem& problem, Direction direction,
                                                 const HopperShape& shape);

/// Text of an instruction of `columns` accumulators for the part of this name of a file: its holes are those of
/// hopper/tiles.cuh's products.
std::string product_text(std::string_view file, std::string_view name, std::int64_t columns, std::string_view type);
/// Fills the holes of hopper/tiles.cuh, but for its products.
void fill_hopper_settings(Holes& holes, const AttentionProblem& problem, const HopperShape& shape, int query_stages);
/// Fills all holes of hopper/tiles.cuh. Decode kernels have the shape of a forward there.
void fill_hopper(Holes& holes, const AttentionProblem& problem, Direction direction, const HopperShape& shape);

}  // namespace scoremod::backend::kernels
