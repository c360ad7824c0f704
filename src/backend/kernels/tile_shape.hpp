#pragma once

#include <cstddef>
#include <cstdint>

#include "scoremod/problem.hpp"

#include "backend/plan.hpp"

namespace scoremod::backend::kernels {

/// How the kernels of one direction cut a problem.
struct TileShape {
  int warps = 4;      ///< of a block of threads
  int row_tiles = 1;  ///< rows of 16 that a warp has in the forward and in the kernel of dq
  int queries = 64;   ///< of a tile of scores: a block's in these two, 16 * row_tiles * warps
  int keys = 64;      ///< likewise: a block's in the kernel of dk and dv, 16 * warps
  int step = 32;      ///< queries that the kernel of dk and dv loads at once
  int part = 32;      ///< of these: queries whose scores it has at once
  int key_step = 32;  ///< keys that the kernel of dq takes at once
  int blocks = 2;     ///< that a multiprocessor should have room for, which limits a thread's registers
  /// dk and dv are written by a kernel each: the sums of both would not fit into the registers.
  bool split_keys = false;
  /// The sum of a row's weights and their gradients is made from these, and not from o and d_o: o's rounding is much of
  /// the error where few rows or keys are summed over. Costs another walk over the keys.
  bool own_deltas = false;

  int threads() const { return 32 * warps; }
  bool operator==(const TileShape&) const = default;
};

/// The shape that was fastest on an H200 among those without spilled registers. Problems whose lengths differ have one
/// shape, but for those with few queries.
TileShape tile_shape(const AttentionProblem& problem, Direction direction);

/// Shared memory of one block, in bytes.
std::size_t forward_shared_bytes(const TileShape& shape, std::int64_t dim_qk, std::int64_t dim_v);
std::size_t backward_queries_shared_bytes(const TileShape& shape, std::int64_t dim_qk, std::int64_t dim_v);
std::size_t backward_keys_shared_bytes(const TileShape& shape, std::int64_t dim_qk, std::int64_t dim_v);

}  // namespace scoremod::backend::kernels
