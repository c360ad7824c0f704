#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "scoremod/problem.hpp"

#include "backend/cuda/modules/runtime_compiler.hpp"
#include "backend/device_properties.hpp"
#include "backend/kernels/family.hpp"
#include "backend/kernels/mask/mask.hpp"
#include "backend/kernels/workspace/call.hpp"
#include "backend/plan.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::kernels {

namespace device {
using std::size_t;
#include "backend/kernels/shared/storage.cuh"
}  // namespace device

/// The building blocks of a kernel.
enum class Family : std::uint8_t {
  kPortable,  ///< mma.sync and cp.async: sm_80 and later
  kHopper,    ///< WGMMA and TMA: sm_90 alone
  /// The decode forward (split-KV, pack-GQA) in terms of kPortable.
  kSplitKv,
  kHopperSplitKv,  ///< the decode forward in terms of kHopper
};
const char* to_string(Family family);
/// Whether it uses WGMMA and TMA.
bool is_hopper(Family family);
/// Whether it is a decode kernel with split-KV.
bool is_split_kv(Family family);

/// The order in which a step of a `fused` backward issues fence.proxy.async for the gradients in shared memory and adds
/// to dq.
enum class DqOrder : std::uint8_t {
  kFenceAtOnce,     ///< the fence follows the writes, and dq's WGMMA those of dv and dk
  kLateFence,       ///< the fence stands between these, so that it waits for additions beside the WGMMAs of dv and dk
  kEarlyAdditions,  ///< dq's WGMMA comes first, so that additions begin beside those of dv and dk
};

/// How the kernels of one direction cut a problem.
struct TileShape {
  Family family = Family::kPortable;
  int warps = 4;          ///< of a CTA, but for Hopper's producers
  int row_tiles = 1;      ///< rows of 16 that a warp has in the forward and in the kernel of dq
  int queries = 64;       ///< of a tile of scores: a CTA's in these two, 16 * row_tiles * warps
  int keys = 64;          ///< of a tile of scores: a CTA's in the kernel of dk and dv, 16 * warps
  int step = 32;          ///< queries that the kernel of dk and dv loads at once
  int part = 32;          ///< of these: queries whose scores it has at once
  int key_step = 32;      ///< keys that the kernel of dq takes at once
  int element_bytes = 2;  ///< of a number in a tile
  int key_bytes = 2;      ///< of a number of k or v in decode kernels, which may be FP8
  int blocks = 2;         ///< CTAs that an SM should have room for, which limits a thread's registers
  /// Launches of a forward that each write some of o's dims, because the accumulators of all do not fit into the
  /// registers. Each makes the scores anew.
  int value_parts = 1;
  /// Separate kernels write dk and dv: the accumulators of both would not fit into the registers.
  bool separate_dv = false;
  /// Delta is recomputed as the sum of a row's weights times their gradients, and not from o and d_o. The rounding of o
  /// is much of the error if few rows or keys are summed over. It costs another walk over the keys.
  bool recomputed_delta = false;
  /// The kernel of dk and dv adds dq up too, in no fixed order (kHopper's backward).
  bool fused = false;
  DqOrder dq_order = DqOrder::kFenceAtOnce;
  /// The CTAs that a device runs at once, if heads that share a KV head take turns in a `fused` backward. It is 0 if
  /// they come one after the other. See kHeadsTakeTurns of settings.cuh. The number is an argument of the kernels, but
  /// whether it is 0 is compiled in.
  int turn_ctas = 0;

  /// Stages of kHopper's TMA pipeline; in decode kernels, the tiles that a team has room for.
  int stages = 2;
  int key_stages = 2;  ///< stages in the kernel of dq

  /// CTAs of kHopper's persistent forward, as many as the device has SMs; 0 for one CTA for each tile. The number is an
  /// argument of the kernels, but whether it is 0 is compiled in.
  int persistent_ctas = 0;

  /// The number of the bias whose tiles TMA loads in kHopper's forward and fused backward, as those of k and v, or of q
  /// and d_o. It varies along queries and keys (loaded_bias()).
  std::optional<std::uint32_t> loaded_bias = std::nullopt;

  /// Longest-first scheduling of rows of tiles (of a fused backward, columns), by the time that their states ask for.
  /// Otherwise they are in the order of a causal mask. It adds a launch and changes no text.
  bool ordered = false;
  /// Heads whose CTAs take turns, so that the last CTAs of all have short rows of tiles: an argument of the kernels.
  /// With 0 they are as many as have CTAs on a device at once, and some more if rows are few.
  int heads_together = 0;

  int teams = 1;   ///< parts of a decode CTA's warps that have the same rows and different keys
  int splits = 1;  ///< split-KV: CTAs that share the keys of a head; an argument of the kernels

  ScoreTile score_tile() const { return {queries, keys}; }

  /// Tiles hold float32, and so do MMAs: needs_floats() of tile_shape.cpp decides.
  bool holds_floats() const { return element_bytes == 4; }

  /// Hopper's producer threads.
  int producers() const { return family == Family::kHopper ? 128 : is_hopper(family) ? 32 * teams : 0; }
  int threads() const { return 32 * warps + producers(); }
  cuda::Instructions instructions() const {
    return is_hopper(family) ? cuda::Instructions::kOfArchitecture : cuda::Instructions::kCommon;
  }
  bool operator==(const TileShape&) const = default;
};

/// The shapes of portable kernels to build, the better first; the last is taken whatever becomes of it, and fits every
/// device. Problems whose lengths differ have the same shapes, except decode problems.
std::vector<TileShape> tile_shapes(const AttentionProblem& problem, Direction direction);
/// The first of them: with 16-bit elements, the fastest on an H200 among shapes without register spills.
TileShape tile_shape(const AttentionProblem& problem, Direction direction);

/// As many value_parts as a forward needs for this head dim of v.
int value_parts_of(std::int64_t dim_v);
/// The dims of v and o that a kernel of this shape has.
std::int64_t value_dims(const TileShape& shape, std::int64_t dim_v);
/// Adds a forward's launch, once for each of the shape's value_parts.
void add_forward_launches(CallLayout& layout, const KernelLaunch& launch, const TileShape& shape, std::int64_t dim_v);

/// The shared memory of the kernels of dk and dv, and of gradients along keys.
device::PortableKeysStorage portable_keys_storage(const TileShape& shape, const AttentionProblem& problem);

/// The widest head whose dims one thread's registers can hold for 16 rows of a warp, and the widest one of forwards
/// that have value_parts.
inline constexpr std::int64_t kWidestHead = 256, kWidestForward = 576;
constexpr std::int64_t widest_head(Direction direction) {
  return direction == Direction::kForward ? kWidestForward : kWidestHead;
}
/// Why no tiled kernels can be made for a direction of a problem, whatever the device; empty where they can.
/// `float8_keys`: whether a family takes FP8 keys and values under queries of 16 bits.
std::vector<UnsupportedReason> problem_objections(const compiler::CompiledProblem& problem, Direction direction,
                                                  bool float8_keys = false);
/// problem_objections(), and device_objections() if there are none and there is a device.
std::vector<UnsupportedReason> tiled_objections(const Work& work, const DeviceProperties* device,
                                                bool float8_keys = false);
/// Why a device cannot run what these kernels are made of, whatever the problem.
std::vector<UnsupportedReason> device_objections(const DeviceProperties& device);
/// The reasons why a launch has too little shared memory on this device.
std::vector<UnsupportedReason> memory_objections(const std::vector<KernelLaunch>& launches,
                                                 const DeviceProperties& device);

}  // namespace scoremod::backend::kernels
