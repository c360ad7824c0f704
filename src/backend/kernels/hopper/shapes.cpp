#include <algorithm>
#include <array>

#include "analysis/keep_nodes.hpp"
#include "backend/few_rows.hpp"
#include "backend/kernels/family.hpp"
#include "backend/kernels/hopper/family.hpp"
#include "backend/kernels/shared/tile_time.hpp"
#include "backend/unsupported.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::kernels {
namespace {

/// Limits of the fused kernel of dq, dk and dv. The queries of a step times the blocks of 64 dims of q and k make a
/// product for two warpgroups. The widest heads whose accumulators fit into the registers come after it, and the
/// queries whose scores fit beside accumulators of q and k wider than that.
constexpr int kFusedProduct = 128;
constexpr std::int64_t kFusedWidest = 128, kFusedWidestQk = 192;
constexpr int kWideStep = 64, kWidePart = 32;
/// Keys of a tile of a forward that loads a bias, of head dims from 129 to 192.
constexpr int kMostKeys = 128, kKeysBesideBias = 96;
/// Measured on an H200, bench/NOTES.md: rows of 4 to 10 tiles took 0.89 to 0.99 of the time, those of 16 and more
/// 1.01 to 1.06.
constexpr double kShortRow = 12, kOfShortRows = 0.94, kOfLongRows = 1.02;
/// With head dims of up to 64, of two warpgroups beside three in a CTA for each tile. Measured on an H100
/// (bench/NOTES.md): documents 0.62 and 0.68, windows 0.91, and 1.07 to 1.13 of long rows.
constexpr std::int64_t kNarrowHead = 64;
constexpr double kOfShortNarrowRows = 0.75, kOfLongNarrowRows = 1.1;
/// A persistent backward by its columns of tiles, measured on an H100 (bench/NOTES.md). At head dim 64 a window and
/// documents took 0.94 and 0.95, causal 0.96 to 1.01, causal documents 1.08. Full, and wider heads, took 1.00 to 1.07.
constexpr double kOfShortColumns = 0.96, kOfOtherColumns = 1.05;
constexpr int kWarpsOfTwoGroups = 8, kQueriesOfTwoGroups = 128;
/// Measured on an H200, bench/NOTES.md: with 64 global queries and keys beside a window, and heads that take turns
/// so; other masks took 1 to 1.01.
constexpr double kOfFewLongest = 0.89, kOfOtherRows = 1.01;
constexpr int kOrderedTogether = 16;
/// Keys of the widest tile, and of a trial's.
constexpr std::int64_t kHopperCopiedKeys = 128;
/// About the time of the products themselves: what a sigmoid, a logarithm or a quotient takes. Programs above were as
/// fast in the smaller shape on an H200 (bench/NOTES.md), and compile three times as fast.
constexpr double kLongMilliseconds = 1.0;

std::int64_t padded(std::int64_t dim) { return (dim + 15) / 16 * 16; }
/// Blocks of a row of a tile.
int blocks_of(std::int64_t dim) { return device::SwizzledTile{1, static_cast<int>(dim)}.blocks; }

/// Whether a program stands in a kernel at such length that more copies of it, for more elements of a thread, cost more
/// time to compile than wider products save.
bool is_long(const Program& program, std::optional<std::uint32_t> loaded_bias = {}) {
  return node_costs(program, false, loaded_bias).value >= kLongMilliseconds;
}

/// Two groups of threads and a tile of 128 by 128.
HopperShape square_shape() {
  HopperShape shape;
  shape.warps = 8;
  shape.queries = shape.keys = 128;
  shape.blocks = 1;
  return shape;
}

/// Shapes of a forward: the one that was fastest on an H200, and the smaller one.
std::array<HopperShape, 2> forward_shapes(const AttentionProblem& problem) {
  const std::int64_t widest = padded(std::max(problem.dim_qk, problem.dim_v));
  HopperShape shape = square_shape();
  if (widest <= 64) {
    shape.warps = 12;
    shape.queries = 192;
  } else if (widest > 192 || padded(problem.dim_v) > 128) {
    shape.keys = 64;
  }
  HopperShape smaller = shape;
  smaller.warps = 8;
  smaller.queries = 128;
  smaller.keys = shape.keys > 64 ? 64 : 32;
  return {shape, smaller};
}

/// Shapes of a backward: the one that was fastest on an H200, and the smaller one. Wide heads have one.
std::array<HopperShape, 2> backward_shapes(const AttentionProblem& problem) {
  const std::int64_t widest = padded(std::max(problem.dim_qk, problem.dim_v));
  HopperShape shape = square_shape();
  const bool wide = widest > 128;
  const Program& program = problem.program;
  const bool score_is_value = program.nodes()[program.value()].op == Op::kScore;
  shape.key_step = widest <= 64 ? 128 : wide ? 32 : 64;
  shape.step = shape.part = widest <= 64 && !score_is_value ? 64 : shape.key_step;
  shape.stages = wide ? 2 : 3;
  shape.key_stages = widest <= 64 ? 3 : wide ? 2 : 4;
  // The sums of both would not fit into the registers.
  shape.separate_dv = padded(problem.dim_qk) + padded(problem.dim_v) > 256;
  if (wide) return {shape, shape};
  HopperShape smaller = shape;
  smaller.key_step /= 2;
  smaller.step = smaller.part = shape.step / 2;
  return {shape, smaller};
}

/// The shared memory of a forward with room for so many tiles of queries.
device::HopperForwardStorage forward_storage(const HopperShape& shape, std::int64_t dim_qk, std::int64_t dim_v,
                                             int query_stages) {
  return {
      static_cast<int>(dim_qk),  static_cast<int>(dim_v),      shape.queries, shape.keys, shape.stages, query_stages,
      shape.persistent_ctas > 0, shape.loaded_bias.has_value()};
}

/// Whether an operand has a number for each query and key, in rows that TMA can load.
bool is_copied(const AttentionProblem& problem, std::uint32_t operand) {
  const OperandDecl& decl = problem.program.operands()[operand];
  const OperandSpec& spec = problem::spec_of(problem, operand);
  const auto varies = [&](Axis axis) { return decl.axes[static_cast<std::size_t>(axis)]; };
  if (decl.is_table() || !varies(Axis::kQuery) || !varies(Axis::kKey) || spec.dtype != problem.dtype) return false;
  const std::size_t keys = spec.shape.size() - 1;
  if (spec.shape[keys - 1] != problem.seq_q || spec.shape[keys] != problem.seq_kv) return false;
  const auto strides = problem::strides_of(spec);
  for (std::size_t i = 0; i < keys; ++i) {
    if (spec.shape[i] > 1 && strides[i] <= 0) return false;
  }
  return copied_argument(problem, operand, nullptr).aligned != 0;
}

}  // namespace

std::vector<HopperShape> hopper_shapes(const AttentionProblem& problem, Direction direction) {
  const auto [larger, smaller] = direction == Direction::kForward ? forward_shapes(problem) : backward_shapes(problem);
  if (larger == smaller) return {larger};
  if (is_long(problem.program)) return {smaller};
  return {larger, smaller};
}

HopperShape persistent_hopper_shape(const AttentionProblem& problem, std::int64_t multiprocessors) {
  HopperShape shape = hopper_shapes(problem, Direction::kForward).front();
  shape.persistent_ctas = static_cast<int>(multiprocessors);
  // Three warpgroups leave a persistent kernel's accumulators too few registers, and short rows waste less of a smaller
  // tile.
  if (shape.warps > kWarpsOfTwoGroups) {
    shape.warps = kWarpsOfTwoGroups;
    shape.queries = kQueriesOfTwoGroups;
  }
  return shape;
}

bool has_narrow_heads(const AttentionProblem& problem) {
  return std::max(problem.dim_qk, problem.dim_v) <= kNarrowHead;
}

double persistent_time_part(const Work& work, const MaskWork& mask) {
  const AttentionProblem& p = work.problem.problem;
  if (work.direction == Direction::kBackward) {
    const double tiles_of_column = mask.run * static_cast<double>(p.seq_q) / hopper_fused_shape(p).queries;
    const bool listed = mask_knowledge(work.problem, work.direction).has_states();
    const bool gains = tiles_of_column <= kShortRow && !(listed && mask.uneven);
    return has_narrow_heads(p) && gains ? kOfShortColumns : kOfOtherColumns;
  }
  const int keys = hopper_shapes(p, Direction::kForward).front().keys;
  const double tiles_of_row = mask.run * static_cast<double>(p.seq_kv) / keys;
  const bool narrow = has_narrow_heads(p);
  if (tiles_of_row <= kShortRow) return narrow ? kOfShortNarrowRows : kOfShortRows;
  return narrow ? kOfLongNarrowRows : kOfLongRows;
}

std::vector<HopperShape> ordered_hopper_shapes(const compiler::CompiledProblem& problem,
                                               std::span<const HopperShape> shapes) {
  const Program& program = problem.forward.program;
  // A band's rows are in order, and of documents the contents say which are long.
  if (problem.forward.mask.kind != masks::MaskKind::kGeneral || analysis::keep_reads_operands(program)) return {};
  std::vector<HopperShape> ordered;
  for (const HopperShape& shape : shapes) {
    if (shape != shapes.front() && shape.persistent_ctas == 0) continue;
    ordered.push_back(shape);
    ordered.back().ordered = true;
    ordered.back().heads_together = kOrderedTogether;
  }
  return ordered;
}

double ordered_time_part(const MaskWork& mask) { return mask.few_longest ? kOfFewLongest : kOfOtherRows; }

std::optional<std::uint32_t> loaded_bias(const AttentionProblem& problem, Direction direction) {
  const auto fits = [&](std::uint32_t operand) {
    const std::size_t bytes =
        direction == Direction::kForward
            ? hopper_forward_storage(copying_hopper_shape(problem, operand), problem.dim_qk, problem.dim_v).bytes
            : hopper_keys_storage(copying_fused_shape(problem, operand), problem).bytes;
    return bytes <= kHopperSharedBytes;
  };
  // CopiedKeys has the numbers of a whole step.
  if (direction == Direction::kBackward && problem.dim_qk > kFusedWidest) return std::nullopt;
  const bool dense = !problem.tokens_q && !problem.tokens_kv && !problem.paged && !problem.index_offsets;
  if (!dense || problem.seq_kv % kHopperCopiedKeys != 0) return std::nullopt;
  for (std::uint32_t i = 0; i < problem.program.operands().size(); ++i) {
    if (is_copied(problem, i) && fits(i)) return i;
  }
  return std::nullopt;
}

HopperShape copying_hopper_shape(const AttentionProblem& problem, std::uint32_t operand) {
  auto [shape, smaller] = forward_shapes(problem);
  if (is_long(problem.program, operand)) shape = smaller;
  // Shared memory has no room for more keys beside the bias.
  if (padded(problem.dim_qk) > 128 && shape.keys == kMostKeys) shape.keys = kKeysBesideBias;
  shape.loaded_bias = operand;
  return shape;
}

HopperShape hopper_fused_shape(const AttentionProblem& problem) {
  HopperShape shape = backward_shapes(problem).front();
  shape.fused = true;
  if (problem.dim_qk > kFusedWidest) {
    shape.step = kWideStep;
    shape.part = kWidePart;
    return shape;
  }
  shape.step = shape.part = kFusedProduct / blocks_of(problem.dim_qk);
  // Beside the gradients of so many scores shared memory has no room for more.
  if (shape.step == kFusedProduct) shape.stages = 2;
  // Each warpgroup has half of the dims of dq here (bench/NOTES.md).
  else
    shape.dq_order = DqOrder::kEarlyAdditions;
  return shape;
}

HopperShape persistent_fused_shape(const AttentionProblem& problem, std::int64_t multiprocessors) {
  HopperShape shape = hopper_fused_shape(problem);
  shape.persistent_ctas = static_cast<int>(multiprocessors);
  return shape;
}

HopperShape copying_fused_shape(const AttentionProblem& problem, std::uint32_t operand) {
  HopperShape shape = hopper_fused_shape(problem);
  shape.loaded_bias = operand;
  return shape;
}

std::vector<UnsupportedReason> hopper_fused_objections(const AttentionProblem& problem, const HopperShape& shape,
                                                       std::span<const OperandTarget> targets) {
  std::vector<UnsupportedReason> reasons;
  if (problem.deterministic) {
    reasons.push_back(
        unsupported(Rule::kDeterministic,
                    "hopper kernels that add dq up beside dk and dv: expected a problem whose gradients may "
                    "differ in their last bits from call to call, found a deterministic one"));
  }
  if (problem.dim_qk > kFusedWidestQk || problem.dim_v > kFusedWidest) {
    reasons.push_back(unsupported(
        Rule::kHeadDim,
        concat("hopper kernels that add dq up beside dk and dv: expected head dims of at most ", kFusedWidestQk,
               " of q and k and ", kFusedWidest, " of v, found ", problem.dim_qk, " and ", problem.dim_v)));
  }
  const auto has = [&](OperandSum sum) {
    return std::ranges::find(targets, sum, &OperandTarget::sum) != targets.end();
  };
  if (has(OperandSum::kQueries)) {
    reasons.push_back(unsupported(Rule::kNoOperandGradient,
                                  "hopper kernels that add dq up beside dk and dv: expected gradients of operands that "
                                  "don't vary along queries alone, found one that does"));
  }
  if (const std::size_t shared = hopper_keys_storage(shape, problem, has(OperandSum::kDifference)).bytes;
      shared > kHopperSharedBytes) {
    reasons.push_back(unsupported(
        Rule::kHeadDim, concat("hopper kernels that add dq up beside dk and dv: expected head dims whose tiles fit "
                               "into ",
                               kHopperSharedBytes, " bytes of shared memory, found ", problem.dim_qk,
                               " of q and k and ", problem.dim_v, " of v, which take ", shared)));
  }
  if (is_long(problem.program, shape.loaded_bias)) {
    reasons.push_back(unsupported(Rule::kEngineRefused,
                                  "hopper kernels that add dq up beside dk and dv: expected a program that takes less "
                                  "time than the products of matrices, found a longer one"));
  }
  return reasons;
}

std::vector<UnsupportedReason> hopper_objections(const AttentionProblem& problem, Direction direction,
                                                 int compute_capability) {
  std::vector<UnsupportedReason> reasons;
  if (compute_capability != kHopperCapability) {
    reasons.push_back(
        unsupported(Rule::kEngineRefused, concat("hopper kernels: expected compute capability 9.0, found ",
                                                 compute_capability / 10, ".", compute_capability % 10)));
  }
  if (problem.dtype == DType::kF32) {
    reasons.push_back(unsupported(Rule::kDtype, "hopper kernels: expected q, k and v in f16 or bf16, found f32"));
  }
  if (std::max(problem.dim_qk, problem.dim_v) > kWidestHead) {
    reasons.push_back(
        unsupported(Rule::kHeadDim, concat("hopper kernels: expected head dims of at most ", kWidestHead, ", found ",
                                           problem.dim_qk, " of q and k and ", problem.dim_v, " of v")));
  }
  const bool backward = direction == Direction::kBackward;
  // It makes rows' deltas from o.
  if (backward && has_few_rows(problem)) {
    reasons.push_back(unsupported(Rule::kEngineRefused, concat("hopper kernels: expected more than ", kFewRows,
                                                               " queries and keys in a backward, found ", problem.seq_q,
                                                               " and ", problem.seq_kv)));
  }
  if (!pages_hold_boxes(problem)) {
    reasons.push_back(unsupported(
        Rule::kPaged,
        concat("hopper kernels: expected pages of a multiple of 8 tokens, found ", problem.paged->block_size)));
  }
  if (backward && problem.dtype_o && *problem.dtype_o != problem.dtype) {
    reasons.push_back(
        unsupported(Rule::kOutputDtype, concat("hopper kernels: expected d_o of the dtype of q, ",
                                               to_string(problem.dtype), ", found ", to_string(*problem.dtype_o))));
  }
  using problem::TensorRole;
  // Tensor maps read these, whose rows must not be the same memory.
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

device::HopperForwardStorage hopper_forward_storage(const HopperShape& shape, std::int64_t dim_qk, std::int64_t dim_v) {
  return forward_storage(shape, dim_qk, dim_v, hopper_query_stages(shape, dim_qk, dim_v));
}

int hopper_query_stages(const HopperShape& shape, std::int64_t dim_qk, std::int64_t dim_v) {
  return shape.persistent_ctas > 0 && forward_storage(shape, dim_qk, dim_v, 2).bytes <= kHopperSharedBytes ? 2 : 1;
}

device::HopperQueriesStorage hopper_queries_storage(const HopperShape& shape, const AttentionProblem& problem,
                                                    bool has_diagonals) {
  return {static_cast<int>(problem.dim_qk),
          static_cast<int>(problem.dim_v),
          shape.queries,
          shape.key_step,
          shape.key_stages,
          has_diagonals};
}

device::HopperKeysStorage hopper_keys_storage(const HopperShape& shape, const AttentionProblem& problem,
                                              bool has_diagonals) {
  return {static_cast<int>(problem.dim_qk),
          static_cast<int>(problem.dim_v),
          shape.keys,
          shape.step,
          shape.stages,
          shape.fused,
          shape.loaded_bias.has_value(),
          has_diagonals,
          shape.persistent_ctas > 0};
}

std::size_t hopper_query_sums_bytes(const HopperShape& shape, const AttentionProblem& problem, std::int64_t tiles) {
  return static_cast<std::size_t>(tiles * shape.queries * blocks_of(problem.dim_qk) * 64) * sizeof(float);
}

std::vector<std::int64_t> hopper_product_columns(const AttentionProblem& problem, Direction direction,
                                                 const HopperShape& shape) {
  std::vector<std::int64_t> columns{padded(value_dims(shape, problem.dim_v))};
  if (direction == Direction::kForward) {
    columns.push_back(shape.keys);
  } else {
    columns.insert(columns.end(), {padded(problem.dim_qk), shape.part, shape.fused ? 64 : shape.key_step});
  }
  std::ranges::sort(columns);
  columns.erase(std::ranges::unique(columns).begin(), columns.end());
  return columns;
}

}  // namespace scoremod::backend::kernels
