#include "backend/kernels/tile_shape.hpp"

#include <algorithm>

#include "base/fail.hpp"

namespace scoremod::backend::kernels {
namespace {

constexpr std::int64_t kHalfBytes = 2;
/// Of these a trial has as many as the problem.
constexpr std::int64_t kFewRows = 64;

std::int64_t padded(std::int64_t dim) { return (dim + 15) / 16 * 16; }
/// Bytes of a row of a tile: row_length() of attention_tiles.cuh.
std::int64_t row_bytes(std::int64_t dim) { return (padded(dim) + 8) * kHalfBytes; }

}  // namespace

const char* to_string(Family family) {
  switch (family) {
    case Family::kPortable: return "portable";
    case Family::kHopper: return "hopper";
    case Family::kFewQueries: return "few-query";
  }
  fail_bug("unknown family of kernels ", static_cast<int>(family));
}

TileShape tile_shape(const AttentionProblem& problem, Direction direction) {
  const std::int64_t widest = padded(std::max(problem.dim_qk, problem.dim_v));
  TileShape shape;
  if (direction == Direction::kForward) {
    if (widest > 128) {
      shape.keys = 32;
    } else if (problem.seq_q > shape.queries) {
      // Each matrix that is read from k and v then serves two products.
      shape.row_tiles = 2;
      shape.queries = 128;
    }
    return shape;
  }
  shape.step = 64;
  if (widest <= 128 && problem.seq_q > shape.queries) {
    shape.row_tiles = 2;
    shape.queries = 128;
  }
  if (widest > 128) {
    // The smallest devices have 99 KiB of shared memory for a block.
    shape.warps = 2;
    shape.queries = shape.keys = 32;
    shape.step = shape.part = 16;
  }
  shape.own_deltas = !problem.given_deltas && std::min(problem.seq_q, problem.seq_kv) <= kFewRows;
  shape.split_keys = padded(problem.dim_qk) + padded(problem.dim_v) > 256;
  return shape;
}

std::size_t forward_shared_bytes(const TileShape& shape, std::int64_t dim_qk, std::int64_t dim_v) {
  return static_cast<std::size_t>((shape.queries + shape.keys) * row_bytes(dim_qk) + shape.keys * row_bytes(dim_v));
}

std::size_t backward_queries_shared_bytes(const TileShape& shape, std::int64_t dim_qk, std::int64_t dim_v) {
  return static_cast<std::size_t>((shape.queries + 2 * shape.key_step) * row_bytes(dim_qk) +
                                  (shape.queries + shape.key_step) * row_bytes(dim_v));
}

std::size_t operand_queries_shared_bytes(const TileShape& shape, std::int64_t dim_qk, std::int64_t dim_v) {
  return static_cast<std::size_t>((shape.queries + 2 * shape.key_step) * (row_bytes(dim_qk) + row_bytes(dim_v)));
}

std::size_t backward_keys_shared_bytes(const TileShape& shape, std::int64_t dim_qk, std::int64_t dim_v) {
  const std::size_t terms = 2 * 2 * static_cast<std::size_t>(shape.step) * sizeof(float);
  return static_cast<std::size_t>((shape.keys + 2 * shape.step) * (row_bytes(dim_qk) + row_bytes(dim_v))) + terms;
}

}  // namespace scoremod::backend::kernels
