#include "backend/kernels/shared/tile_shape.hpp"

#include <algorithm>

#include "backend/few_rows.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::kernels {
namespace {

std::int64_t padded(std::int64_t dim) { return (dim + 15) / 16 * 16; }
/// Whether tiles and MMAs are of floats. A backward's are too if d_o would lose digits in q's dtype: f16 has few of a
/// float's numbers, and supplied deltas were made from d_o as it is.
bool needs_floats(const AttentionProblem& problem, Direction direction) {
  const bool rounds_d_o = direction == Direction::kBackward && problem.dtype_o.value_or(problem.dtype) != problem.dtype;
  return problem.dtype == DType::kF32 || (rounds_d_o && (problem.dtype == DType::kF16 || problem.given_deltas));
}

TileShape forward_shape(const AttentionProblem& problem) {
  const std::int64_t widest = padded(std::max(problem.dim_qk, problem.dim_v));
  const bool floats = needs_floats(problem, Direction::kForward);
  TileShape shape;
  shape.element_bytes = floats ? 4 : 2;
  if (widest > 128) {
    shape.keys = floats ? 16 : 32;
  } else {
    if (floats && widest > 64) shape.keys = 32;
    if (problem.seq_q > shape.queries) {
      // Each matrix that is read from k and v then serves two products.
      shape.row_tiles = 2;
      shape.queries = 128;
    }
  }
  return shape;
}

TileShape backward_shape(const AttentionProblem& problem) {
  const std::int64_t widest = padded(std::max(problem.dim_qk, problem.dim_v));
  const bool floats = needs_floats(problem, Direction::kBackward);
  TileShape shape;
  shape.element_bytes = floats ? 4 : 2;
  shape.step = 64;
  if (widest <= (floats ? 64 : 128) && problem.seq_q > shape.queries) {
    shape.row_tiles = 2;
    shape.queries = 128;
  }
  if (widest > 128) {
    // The smallest devices have 99 KiB of shared memory for a block.
    shape.warps = 2;
    shape.queries = shape.keys = 32;
    shape.step = shape.part = 16;
  }
  if (floats) {
    shape.step = shape.part = shape.key_step = widest > 64 ? 16 : 32;
  }
  shape.recomputed_delta = !problem.given_deltas && has_few_rows(problem);
  shape.separate_dv = padded(problem.dim_qk) + padded(problem.dim_v) > 256;
  return shape;
}

}  // namespace

const char* to_string(Family family) {
  switch (family) {
    case Family::kPortable: return "portable";
    case Family::kHopper: return "hopper";
    case Family::kSplitKv: return "split-KV";
    case Family::kHopperSplitKv: return "hopper split-KV";
  }
  fail_bug("unknown family of kernels ", static_cast<int>(family));
}

bool is_hopper(Family family) { return family == Family::kHopper || family == Family::kHopperSplitKv; }
bool is_split_kv(Family family) { return family == Family::kSplitKv || family == Family::kHopperSplitKv; }

std::vector<TileShape> tile_shapes(const AttentionProblem& problem, Direction direction) {
  TileShape best = direction == Direction::kForward ? forward_shape(problem) : backward_shape(problem);
  TileShape smaller = best;
  if (best.row_tiles > 1) {
    smaller.row_tiles = 1;
    smaller.queries /= 2;
    smaller.step = std::min(smaller.step, smaller.queries);
  } else if (direction == Direction::kBackward && best.holds_floats()) {
    smaller.step = smaller.part = smaller.key_step = 8;
  }
  if (smaller == best) return {best};
  return {best, smaller};
}

TileShape tile_shape(const AttentionProblem& problem, Direction direction) {
  return tile_shapes(problem, direction).front();
}

device::PortableKeysStorage portable_keys_storage(const TileShape& shape, const AttentionProblem& problem) {
  return {static_cast<int>(problem.dim_qk), static_cast<int>(problem.dim_v), shape.keys, shape.step,
          shape.element_bytes};
}

}  // namespace scoremod::backend::kernels
