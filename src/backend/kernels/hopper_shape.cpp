#include "backend/kernels/hopper_shape.hpp"

#include <algorithm>
#include <array>

#include "backend/kernels/arguments.hpp"
#include "backend/kernels/node_costs.hpp"
#include "backend/unsupported.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::kernels {
namespace {

constexpr int kCapability = 90;
/// Tiles begin where the exchange of a row's words does.
constexpr std::size_t kAlignment = 1024, kBarrierBytes = 8;
/// The backward makes rows' deltas from o: with few rows or keys, o's rounding would be much of the error.
constexpr std::int64_t kFewRows = 64;
/// Of one block of threads.
constexpr std::size_t kSharedBytes = std::size_t{227} * 1024;
/// Further behind than portable kernels are in any case that was timed.
constexpr double kUntimed = 3;
/// About the time of the products themselves: what a sigmoid, a logarithm or a quotient takes. Programs above were as
/// fast in the smaller shape on an H200 (docs/performance.md), and compile three times as fast.
constexpr double kLongMilliseconds = 1.0;

std::int64_t padded(std::int64_t dim) { return (dim + 15) / 16 * 16; }
/// tile_bytes() of hopper_tiles.cuh.
std::size_t tile_bytes(std::int64_t rows, std::int64_t dim) {
  return static_cast<std::size_t>(rows * ((dim + 63) / 64) * 128);
}

/// Whether a program stands in a kernel at such length that more copies of it, for more elements of a thread, cost more
/// time to compile than wider products save.
bool is_long(const Program& program) { return node_costs(program).value >= kLongMilliseconds; }

/// Shared memory of a block of the forward with room for so many tiles of queries.
std::size_t forward_bytes(const TileShape& shape, std::int64_t dim_qk, std::int64_t dim_v, std::size_t query_stages) {
  const auto stages = static_cast<std::size_t>(shape.stages);
  const std::size_t tiles = query_stages * tile_bytes(shape.queries, dim_qk) +
                            stages * (tile_bytes(shape.keys, dim_qk) + tile_bytes(shape.keys, dim_v));
  if (shape.persistent_blocks == 0) return kAlignment + tiles + (query_stages + 4 * stages) * kBarrierBytes;
  // GivenItem and ItemNote of hopper_forward_tiles.cuh, and a number.
  constexpr std::size_t kGivenBytes = 20, kNoteBytes = 16, kNumberBytes = 4;
  return kAlignment + tiles + (2 * query_stages + 4 * stages) * kBarrierBytes + query_stages * kGivenBytes +
         (query_stages + 1) * kNoteBytes + kNumberBytes;
}

}  // namespace

std::vector<TileShape> hopper_shapes(const AttentionProblem& problem, Direction direction) {
  const std::int64_t widest = padded(std::max(problem.dim_qk, problem.dim_v));
  TileShape shape;
  shape.family = Family::kHopper;
  shape.warps = 8;
  shape.queries = shape.keys = 128;
  shape.blocks = 1;
  if (direction == Direction::kForward) {
    if (widest <= 64) {
      shape.warps = 12;
      shape.queries = 192;
    } else if (widest > 192 || padded(problem.dim_v) > 128) {
      shape.keys = 64;
    } else if (widest > 128) {
      shape.keys = 96;
    }
    TileShape smaller = shape;
    smaller.warps = 8;
    smaller.queries = 128;
    smaller.keys = shape.keys > 64 ? 64 : 32;
    if (is_long(problem.program)) return {smaller};
    return {shape, smaller};
  }
  const bool wide = widest > 128;
  const Program& program = problem.program;
  const bool score_is_value = program.nodes()[program.value()].op == Op::kScore;
  shape.key_step = widest <= 64 ? 128 : wide ? 32 : 64;
  shape.step = shape.part = widest <= 64 && !score_is_value ? 64 : shape.key_step;
  shape.stages = wide ? 2 : 3;
  shape.key_stages = widest <= 64 ? 3 : wide ? 2 : 4;
  // The sums of both would not fit into the registers.
  shape.split_keys = padded(problem.dim_qk) + padded(problem.dim_v) > 256;
  if (wide) return {shape};
  TileShape smaller = shape;
  smaller.key_step /= 2;
  smaller.step = smaller.part = shape.step / 2;
  if (is_long(problem.program)) return {smaller};
  return {shape, smaller};
}

TileShape persistent_hopper_shape(const AttentionProblem& problem, std::int64_t multiprocessors) {
  TileShape shape = hopper_shapes(problem, Direction::kForward).front();
  shape.persistent_blocks = static_cast<int>(multiprocessors);
  return shape;
}

double persistent_time_part([[maybe_unused]] const compiler::CompiledProblem& problem,
                            [[maybe_unused]] const MaskWork& mask) {
  return kUntimed;
}

std::vector<UnsupportedReason> hopper_objections(const AttentionProblem& problem, Direction direction,
                                                 int compute_capability) {
  std::vector<UnsupportedReason> reasons;
  if (compute_capability != kCapability) {
    reasons.push_back(
        unsupported(Rule::kEngineRefused, concat("hopper kernels: expected compute capability 9.0, found ",
                                                 compute_capability / 10, ".", compute_capability % 10)));
  }
  if (problem.dtype == DType::kF32) {
    reasons.push_back(unsupported(Rule::kDtype, "hopper kernels: expected q, k and v in f16 or bf16, found f32"));
  }
  const bool backward = direction == Direction::kBackward;
  if (backward && std::min(problem.seq_q, problem.seq_kv) <= kFewRows) {
    reasons.push_back(unsupported(Rule::kEngineRefused, concat("hopper kernels: expected more than ", kFewRows,
                                                               " queries and keys in a backward, found ", problem.seq_q,
                                                               " and ", problem.seq_kv)));
  }
  if (problem.paged)
    reasons.push_back(unsupported(Rule::kPaged, "hopper kernels: expected dense keys and values, found paged ones"));
  if (backward && problem.dtype_o && *problem.dtype_o != problem.dtype) {
    reasons.push_back(
        unsupported(Rule::kOutputDtype, concat("hopper kernels: expected d_o of the dtype of q, ",
                                               to_string(problem.dtype), ", found ", to_string(*problem.dtype_o))));
  }
  using problem::TensorRole;
  // What tensor maps read: no rows that are the same memory either.
  static constexpr std::array<const char*, 4> kNames{"q", "k", "v", "d_o"};
  static constexpr std::array kRoles{TensorRole::kQ, TensorRole::kK, TensorRole::kV, TensorRole::kDO};
  for (std::size_t i = 0; i < (backward ? 4 : 3); ++i) {
    const device::TensorArgument tensor = tensor_argument(problem, kRoles[i], nullptr);
    const problem::TensorShape rows = problem::memory_shape_of(problem, kRoles[i]);
    const bool repeats = backward && ((rows.batch > 1 && tensor.batch == 0) || (rows.heads > 1 && tensor.head == 0));
    if (tensor.aligned != 0 && !repeats) continue;
    reasons.push_back(unsupported(
        Rule::kCopyAlignment,
        concat(
            "hopper kernels: expected rows of ", kNames[i],
            " that lie densely, with a head dim and strides that are multiples of 8 elements, found another layout")));
  }
  return reasons;
}

std::size_t hopper_forward_shared_bytes(const TileShape& shape, std::int64_t dim_qk, std::int64_t dim_v) {
  const auto query_stages = static_cast<std::size_t>(hopper_query_stages(shape, dim_qk, dim_v));
  return forward_bytes(shape, dim_qk, dim_v, query_stages);
}

int hopper_query_stages(const TileShape& shape, std::int64_t dim_qk, std::int64_t dim_v) {
  return shape.persistent_blocks > 0 && forward_bytes(shape, dim_qk, dim_v, 2) <= kSharedBytes ? 2 : 1;
}

std::size_t hopper_backward_queries_shared_bytes(const TileShape& shape, std::int64_t dim_qk, std::int64_t dim_v) {
  const auto stages = static_cast<std::size_t>(shape.key_stages);
  return kAlignment + tile_bytes(shape.queries, dim_qk) + tile_bytes(shape.queries, dim_v) +
         stages * (tile_bytes(shape.key_step, dim_qk) + tile_bytes(shape.key_step, dim_v)) +
         (1 + 4 * stages) * kBarrierBytes;
}

std::size_t hopper_diagonals_shared_bytes(const TileShape& shape) {
  // As in attention_diagonals.cuh.
  const int column_pitch = (shape.key_step + 8 + 11) / 16 * 16 + 4;
  return static_cast<std::size_t>(shape.warps * 8 * column_pitch) * sizeof(float);
}

std::size_t hopper_backward_keys_shared_bytes(const TileShape& shape, std::int64_t dim_qk, std::int64_t dim_v) {
  const auto stages = static_cast<std::size_t>(shape.stages);
  const std::size_t terms = 2 * static_cast<std::size_t>(shape.step) * sizeof(float);
  return kAlignment + tile_bytes(shape.keys, dim_qk) + tile_bytes(shape.keys, dim_v) +
         stages * (tile_bytes(shape.step, dim_qk) + tile_bytes(shape.step, dim_v) + terms) +
         (1 + 2 * stages) * kBarrierBytes;
}

std::vector<std::int64_t> hopper_product_columns(const AttentionProblem& problem, Direction direction,
                                                 const TileShape& shape) {
  std::vector<std::int64_t> columns{padded(problem.dim_v)};
  if (direction == Direction::kForward) {
    columns.push_back(shape.keys);
  } else {
    columns.insert(columns.end(), {padded(problem.dim_qk), shape.step, shape.key_step});
  }
  std::ranges::sort(columns);
  columns.erase(std::ranges::unique(columns).begin(), columns.end());
  return columns;
}

}  // namespace scoremod::backend::kernels
