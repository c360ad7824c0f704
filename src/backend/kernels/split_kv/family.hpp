#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "scoremod/problem.hpp"

#include "backend/candidate.hpp"
#include "backend/device_properties.hpp"
#include "backend/kernels/shared/tiled_variant.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::kernels {

namespace device {
#include "backend/kernels/split_kv/storage.cuh"
}  // namespace device

/// Decode forwards: split-KV and pack-GQA, by mma.sync and cp.async, or by WGMMA with TMA or cp.async.
extern const KernelFamily kSplitKvFamily;

/// The shape of a decode forward.
struct SplitKvShape : TileShape {
  bool hopper = false;      ///< by WGMMA and TMA, else by mma.sync and cp.async
  bool wide = false;        ///< of `hopper`: two warpgroups have half of v's dims each, and a third one loads keys
  bool streamed = false;    ///< a persistent one by warps whose loads run on from one tile of rows to the next
  int teams = 1;            ///< parts of a CTA's warps that have the same rows and different keys
  int splits = 1;           ///< split-KV: CTAs that share the keys of a head; an argument of the kernels
  int stages = 2;           ///< the tiles that a team has room for
  int key_bytes = 2;        ///< of a number of k or v, which may be FP8
  bool row_scales = false;  ///< rows of FP8 keys or values have scales of their own
  /// CTAs of a persistent kernel, as many as a device runs at once; 0 if each has one split. The number is an argument
  /// of the kernels, but whether it is 0 is compiled in.
  int persistent_ctas = 0;

  /// A Hopper team has a warp of producers, or a warpgroup where it may have to gather rows.
  int producers() const { return !hopper ? 0 : wide ? 128 : 32 * teams; }
  int threads() const { return consumer_threads() + producers(); }
  KernelTraits traits() const;
  bool operator==(const SplitKvShape&) const = default;
};

std::shared_ptr<const TiledVariant> split_kv_variant(const SplitKvShape& shape);

/// Shapes of a decode forward on this device, with room for 16, 32 and 64 rows, each with split-KV and with a single
/// split. The fastest is the one that a problem's rows fill best, which are the queries of all heads of a KV head. A
/// problem with other sizes (a trial of this one) has the same six, but for the number of splits.
std::vector<SplitKvShape> split_kv_shapes(const AttentionProblem& problem, const DeviceProperties& device);

/// A shape for so many rows, by warps of 16 row_tiles of them each, which take so many keys at once. It has as many
/// stages as the device has room for, and fewer warps if that leaves too few.
SplitKvShape split_kv_shape(int rows, int row_tiles, int keys, int warps, const AttentionProblem& problem,
                            const DeviceProperties& device);

/// A decode shape with the splits that suit other sizes.
SplitKvShape split_kv_at_sizes(SplitKvShape shape, const AttentionProblem& problem, std::int64_t multiprocessors);

/// Shapes of a persistent decode forward, which shares out the keys that there are by lengths in device memory. They
/// have room for 16, 32 and 64 rows, and some come with tiles of fewer keys, too. Empty if all sequences have as many
/// keys. They do not depend on lengths.
std::vector<SplitKvShape> persistent_split_kv_shapes(const AttentionProblem& problem, const DeviceProperties& device);
/// The persistent shape of 16 rows whose loads run on from one tile of rows to the next, with so many warps. It has as
/// many stages as there is room for.
SplitKvShape streamed_split_kv_shape(int warps, const AttentionProblem& problem, const DeviceProperties& device);
/// The warps of it that the planner offers, or fewer where shared memory has no room for them.
inline constexpr int kStreamedWarps = 8;
/// Why there is none where there are persistent_split_kv_shapes(); empty where there is one.
std::vector<UnsupportedReason> streamed_split_kv_objections(const AttentionProblem& problem);
/// Whether only device memory knows how many keys a sequence has, because they are paged or varlen.
bool has_lengths_in_memory(const AttentionProblem& problem);

/// Shapes by warpgroups, on Hopper, whatever the rows: with split-KV, and with a single split.
std::vector<SplitKvShape> hopper_split_kv_shapes(const AttentionProblem& problem, std::int64_t multiprocessors);
/// The persistent one, where persistent_split_kv_shapes() has some, whatever the lengths.
SplitKvShape persistent_hopper_split_kv_shape(const AttentionProblem& problem, std::int64_t multiprocessors);
/// One whose teams, a warpgroup each, take so many keys at once: with as many stages as there is room for.
SplitKvShape hopper_split_kv_shape(int keys, int teams, const AttentionProblem& problem, std::int64_t multiprocessors);
/// Why there are none where there are Hopper kernels and split_kv_shapes(); empty where there are. A problem's trial
/// has no more rows than fit, where the problem has not.
std::vector<UnsupportedReason> hopper_split_kv_objections(const AttentionProblem& problem);

/// The persistent shape by warpgroups of heads of v wider than 256, whatever the rows and the layout of keys.
SplitKvShape wide_split_kv_shape(const AttentionProblem& problem, std::int64_t multiprocessors);
/// Why there is none on Hopper for what there are split_kv_shapes() for; empty where there is one.
std::vector<UnsupportedReason> wide_split_kv_objections(const AttentionProblem& problem);

/// Why there are no such kernels for what there are portable ones for; empty where there are.
std::vector<UnsupportedReason> split_kv_objections(const AttentionProblem& problem);

/// Tiles of rows that share the keys of a head.
std::int64_t split_kv_row_tiles(const SplitKvShape& shape, const AttentionProblem& problem);

/// Shared memory of one block, in bytes.
std::size_t split_kv_shared_bytes(const SplitKvShape& shape, std::int64_t dim_qk, std::int64_t dim_v);
/// The size of the partials in the workspace.
std::size_t split_kv_part_bytes(const SplitKvShape& shape, const AttentionProblem& problem);

/// How long a forward takes in one of split_kv_shapes() or hopper_split_kv_shapes(), scaled from an H200's times, in
/// part by a probe's ratios (bench/NOTES.md). `mask` is mask_work() of the forward. Pure.
Prediction split_kv_time(const compiler::CompiledProblem& problem, const SplitKvShape& shape, const MaskWork& mask,
                         const DeviceRates& rates);

}  // namespace scoremod::backend::kernels
