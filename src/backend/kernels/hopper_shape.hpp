#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "scoremod/problem.hpp"

#include "backend/kernels/mask_work.hpp"
#include "backend/kernels/operand_target.hpp"
#include "backend/kernels/tile_shape.hpp"

namespace scoremod::backend::kernels {

/// Rows that one copy to shared memory brings.
inline constexpr int kHopperBoxRows = 32;

/// The shapes of Hopper kernels to build, whatever the lengths: the one that was fastest on an H200, and one that takes
/// fewer registers, for programs with which the other's products are serialized.
std::vector<TileShape> hopper_shapes(const AttentionProblem& problem, Direction direction);

/// Whether a forward's kernel has registers for persistent blocks: not where three groups of threads share them, as
/// with small head dims.
bool has_persistent_hopper_shape(const AttentionProblem& problem);
/// The first of hopper_shapes() of a forward with persistent blocks, whatever the lengths.
TileShape persistent_hopper_shape(const AttentionProblem& problem, std::int64_t multiprocessors);

/// What part of the time of a block for each tile of queries persistent blocks are expected to take: where it is below
/// 1 they are what runs, and elsewhere autotuning alone may choose them.
double persistent_time_part(const compiler::CompiledProblem& problem, const MaskWork& mask);

/// Those of these forwards that are also offered with their rows of tiles in order, the longest first: where the
/// program alone says that few rows are much longer than the others. Whatever the lengths.
std::vector<TileShape> ordered_hopper_shapes(const compiler::CompiledProblem& problem,
                                             std::span<const TileShape> shapes);
/// What part of the time of rows as they are those in order are expected to take.
double ordered_time_part(const MaskWork& mask);

/// The operand whose tiles a forward of hopper_shapes(), or a fused backward, can copy ahead: one that has a number of
/// its own for each query and key, in q's dtype. Rows must begin at multiples of 16 bytes, and keys be whole tiles, in
/// which case rows of a trial do so, too. Nothing where there is none, or where shared memory has no room for its
/// tiles: two of a forward, one of a backward, whose groups read each its half at another time.
std::optional<std::uint32_t> copied_operand(const AttentionProblem& problem, Direction direction);
/// That of a forward that copies it.
TileShape copying_hopper_shape(const AttentionProblem& problem, std::uint32_t operand);

/// That of a backward whose kernel of dk and dv makes dq too, and of one that copies the tiles of copied_operand().
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

/// Tiles of queries that a block of the forward has room for: two where blocks are persistent and these fit.
int hopper_query_stages(const TileShape& shape, std::int64_t dim_qk, std::int64_t dim_v);

/// Shared memory that a block may have, in bytes; what its tiles may take to begin at a multiple of what they must; and
/// a tile of rows of so many dims.
inline constexpr std::int64_t kHopperSharedBytes = std::int64_t{227} * 1024, kHopperAlignment = 1024;
std::int64_t hopper_tile_bytes(std::int64_t rows, std::int64_t dim);

/// Shared memory of one block, in bytes.
std::size_t hopper_forward_shared_bytes(const TileShape& shape, std::int64_t dim_qk, std::int64_t dim_v);
std::size_t hopper_backward_queries_shared_bytes(const TileShape& shape, std::int64_t dim_qk, std::int64_t dim_v);
/// What the kernel of dq, or the one that makes it beside dk and dv, has more where gains are summed along diagonals.
std::size_t hopper_diagonals_shared_bytes(const TileShape& shape);
std::size_t hopper_backward_keys_shared_bytes(const TileShape& shape, std::int64_t dim_qk, std::int64_t dim_v);
std::size_t hopper_write_queries_shared_bytes(const TileShape& shape, std::int64_t dim_qk);
/// Of a call's workspace, what dq is added up in.
std::size_t hopper_query_sums_bytes(const TileShape& shape, const AttentionProblem& problem);

/// The numbers of columns that the kernels' products have, each once.
std::vector<std::int64_t> hopper_product_columns(const AttentionProblem& problem, Direction direction,
                                                 const TileShape& shape);

}  // namespace scoremod::backend::kernels
