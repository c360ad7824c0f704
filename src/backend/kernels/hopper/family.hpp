#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "scoremod/problem.hpp"

#include "backend/kernels/family.hpp"
#include "backend/kernels/mask/mask.hpp"
#include "backend/kernels/shared/tile_shape.hpp"
#include "backend/kernels/shared/tiled_variant.hpp"
#include "backend/kernels/text/kernel_source.hpp"
#include "backend/plan.hpp"

namespace scoremod::backend::kernels {

namespace device {
#include "backend/kernels/hopper/storage.cuh"
}  // namespace device

/// Kernels of WGMMA and TMA, for sm_90 alone.
extern const KernelFamily kHopperFamily;
/// The times of a backward that adds dq up beside dk and dv: five MMAs in place of seven hide more of the program. With
/// head dims above 128 they are a guess between cuDNN's and those of separate kernels, as nobody has measured them yet.
inline constexpr TiledTimes kHopperFusedTimes{1.92, 0.245, 0.22, 2.45, 1, 0.016, 0.54};

std::shared_ptr<const TiledVariant> hopper_variant(const TileShape& shape);

/// The shapes of Hopper kernels to build, whatever the lengths: the one that was fastest on an H200, and one that takes
/// fewer registers. ptxas serializes the WGMMAs of the first with some programs.
std::vector<TileShape> hopper_shapes(const AttentionProblem& problem, Direction direction);

/// The first of hopper_shapes() of a forward as a persistent kernel, whatever the lengths.
TileShape persistent_hopper_shape(const AttentionProblem& problem, std::int64_t multiprocessors);

/// Whether head dims are at most 64.
bool has_narrow_heads(const AttentionProblem& problem);

/// The expected time of a persistent kernel, as a part of that of one CTA for each tile of queries. Below 1 it is what
/// runs; otherwise only autotuning may choose it.
double persistent_time_part(const compiler::CompiledProblem& problem, const MaskWork& mask);

/// The shapes of these forwards with longest-first scheduling. They are candidates if the program alone says that few
/// rows are much longer than the others, whatever the lengths.
std::vector<TileShape> ordered_hopper_shapes(const compiler::CompiledProblem& problem,
                                             std::span<const TileShape> shapes);
/// The expected time of rows in that order, as a part of that of rows as they are.
double ordered_time_part(const MaskWork& mask);

/// The bias that a forward of hopper_shapes(), or a fused backward, can load by TMA: one with a number for each query
/// and key, in q's dtype. Its rows must begin at multiples of 16 bytes, and keys be whole tiles, so that a trial's rows
/// are aligned too. There is none if shared memory has no room for its tiles. A forward has two; a backward has one, of
/// which each warpgroup reads half at its own time.
std::optional<std::uint32_t> loaded_bias(const AttentionProblem& problem, Direction direction);
/// The shape of a forward that loads it.
TileShape copying_hopper_shape(const AttentionProblem& problem, std::uint32_t operand);

/// The shape of a fused backward, whose kernel of dk and dv computes dq too, and of one that loads loaded_bias() by
/// TMA.
TileShape hopper_fused_shape(const AttentionProblem& problem);
TileShape copying_fused_shape(const AttentionProblem& problem, std::uint32_t operand);
/// Why there are no kernels of such a shape, with the gradients of these operands beside, where there are Hopper
/// kernels; empty where there are.
std::vector<UnsupportedReason> hopper_fused_objections(const AttentionProblem& problem, const TileShape& shape,
                                                       std::span<const OperandTarget> targets = {});

/// Why there are no Hopper kernels for what there are portable ones for, on a device of this compute capability; empty
/// where there are.
std::vector<UnsupportedReason> hopper_objections(const AttentionProblem& problem, Direction direction,
                                                 int compute_capability);

/// Stages of q tiles in the forward: two if the kernel is persistent and these fit.
int hopper_query_stages(const TileShape& shape, std::int64_t dim_qk, std::int64_t dim_v);

/// The most shared memory of a CTA, in bytes.
inline constexpr std::size_t kHopperSharedBytes = std::size_t{227} * 1024;

/// The shared memory of a CTA of the forwards, of the kernel of dq, and of those of dk and dv. `has_diagonals` if
/// gradients are summed along diagonals beside.
device::HopperForwardStorage hopper_forward_storage(const TileShape& shape, std::int64_t dim_qk, std::int64_t dim_v);
device::HopperQueriesStorage hopper_queries_storage(const TileShape& shape, const AttentionProblem& problem,
                                                    bool has_diagonals = false);
device::HopperKeysStorage hopper_keys_storage(const TileShape& shape, const AttentionProblem& problem,
                                              bool has_diagonals = false);
/// The size of the sums of dq in a call's workspace, of so many tiles of queries.
std::size_t hopper_query_sums_bytes(const TileShape& shape, const AttentionProblem& problem, std::int64_t tiles);

/// The numbers of columns that the kernels' products have, each once.
std::vector<std::int64_t> hopper_product_columns(const AttentionProblem& problem, Direction direction,
                                                 const TileShape& shape);

/// Fills the holes of hopper/tiles.cuh and hopper/primitives.cuh.
void fill_hopper(Holes& holes, const AttentionProblem& problem, Direction direction, const TileShape& shape);

}  // namespace scoremod::backend::kernels
