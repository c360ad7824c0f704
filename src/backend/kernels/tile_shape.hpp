#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "scoremod/problem.hpp"

#include "backend/cuda/runtime_compiler.hpp"
#include "backend/plan.hpp"

namespace scoremod::backend::kernels {

/// What kernels are made of.
enum class Family : std::uint8_t {
  kPortable,  ///< products by warps and copies by threads: sm_80 and later
  kHopper,    ///< products by warpgroups and copies by boxes: sm_90 alone
  /// A forward of few queries against many keys, of what kPortable is made of: keys are shared out among blocks.
  kFewQueries,
  kHopperFewQueries,  ///< the same, of what kHopper is made of
};
const char* to_string(Family family);
/// Products by warpgroups, copies by boxes.
bool is_hopper(Family family);
/// Keys shared out among blocks.
bool is_few_queries(Family family);

/// In what order a step of a `fused` backward tells products of the gradients in shared memory and adds to dq.
enum class DqOrder : std::uint8_t {
  kFenceAtOnce,     ///< the fence follows the writes, and dq's product those of dv and dk
  kLateFence,       ///< the fence stands between these, so that it waits for additions beside the products of dv and dk
  kEarlyAdditions,  ///< dq's product comes first, so that additions begin beside those of dv and dk
};

/// How the kernels of one direction cut a problem.
struct TileShape {
  Family family = Family::kPortable;
  int warps = 4;          ///< of a block of threads, but for Hopper's producers
  int row_tiles = 1;      ///< rows of 16 that a warp has in the forward and in the kernel of dq
  int queries = 64;       ///< of a tile of scores: a block's in these two, 16 * row_tiles * warps
  int keys = 64;          ///< likewise: a block's in the kernel of dk and dv, 16 * warps
  int step = 32;          ///< queries that the kernel of dk and dv loads at once
  int part = 32;          ///< of these: queries whose scores it has at once
  int key_step = 32;      ///< keys that the kernel of dq takes at once
  int element_bytes = 2;  ///< of a number in a tile
  int blocks = 2;         ///< that a multiprocessor should have room for, which limits a thread's registers
  /// dk and dv are written by a kernel each: the sums of both would not fit into the registers.
  bool split_keys = false;
  /// The sum of a row's weights and their gradients is made from these, and not from o and d_o: o's rounding is much of
  /// the error where few rows or keys are summed over. Costs another walk over the keys.
  bool own_deltas = false;
  /// Of kHopper's backward: the kernel of dk and dv adds dq up beside them, in no fixed order.
  bool fused = false;
  DqOrder dq_order = DqOrder::kFenceAtOnce;

  /// Of kHopper: tiles of a kind that are copied ahead; of few queries' kernels, that a team has room for.
  int stages = 2;
  int key_stages = 2;  ///< the same, in the kernel of dq

  /// Of a forward of kHopper: blocks that have the tiles of queries one after the other, as many as the device has
  /// multiprocessors; 0 where there is one block for each tile. An argument of the kernels, but for whether there are.
  int persistent_blocks = 0;

  /// Of kHopper's forward and fused backward: the number of an operand whose tiles are copied ahead as those of k and
  /// v, or of q and d_o, are, one that varies along queries and keys (copied_operand()), if one is.
  std::optional<std::uint32_t> copied_operand = std::nullopt;

  /// Rows of tiles are taken in the order of the time that their states ask for, the longest first (of a fused
  /// backward, columns); without it as a causal mask has them. Of no text, but a launch.
  bool ordered = false;
  /// Heads whose blocks take turns, so that the last blocks of all have short rows of tiles: an argument of the
  /// kernels. 0: as many as have blocks on a device at once, and some more where rows are few.
  int heads_together = 0;

  int teams = 1;   ///< of few queries' kernels: parts of a block's warps that have the same rows and different keys
  int splits = 1;  ///< likewise: blocks that share the keys of a head; an argument of the kernels

  /// Tiles hold float32, and products are of it: needs_floats() of tile_shape.cpp says where.
  bool holds_floats() const { return element_bytes == 4; }

  /// Hopper's threads that copy for the others.
  int producers() const { return family == Family::kHopper ? 128 : is_hopper(family) ? 32 * teams : 0; }
  int threads() const { return 32 * warps + producers(); }
  cuda::Instructions instructions() const {
    return is_hopper(family) ? cuda::Instructions::kOfArchitecture : cuda::Instructions::kCommon;
  }
  bool operator==(const TileShape&) const = default;
};

/// The shapes of portable kernels to build, the better first; the last is taken whatever becomes of it, and fits every
/// device. Problems whose lengths differ have the same shapes, but for those with few queries.
std::vector<TileShape> tile_shapes(const AttentionProblem& problem, Direction direction);
/// The first of them: of halves, what was fastest on an H200 among shapes without spilled registers.
TileShape tile_shape(const AttentionProblem& problem, Direction direction);

/// Shared memory of one block, in bytes.
std::size_t forward_shared_bytes(const TileShape& shape, std::int64_t dim_qk, std::int64_t dim_v);
std::size_t backward_queries_shared_bytes(const TileShape& shape, std::int64_t dim_qk, std::int64_t dim_v);
std::size_t operand_queries_shared_bytes(const TileShape& shape, std::int64_t dim_qk, std::int64_t dim_v);
std::size_t backward_keys_shared_bytes(const TileShape& shape, std::int64_t dim_qk, std::int64_t dim_v);
std::size_t shared_elements_shared_bytes(const TileShape& shape, std::int64_t dim_qk, std::int64_t dim_v);
/// What attention_table_sums.cuh takes beside operand_queries_shared_bytes().
std::size_t table_sums_shared_bytes(const TileShape& shape);

}  // namespace scoremod::backend::kernels
