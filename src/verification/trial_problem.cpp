#include "verification/trial_problem.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "compiler/pipeline.hpp"
#include "ir/builder.hpp"
#include "problem/block_scales.hpp"
#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"
#include "verification/small_constants.hpp"

namespace scoremod::verification {
namespace {

constexpr std::int64_t kTile = 128;
/// Two tiles and a bit: the first tile, one in the middle and a partial one are all there.
constexpr std::int64_t kFewTiles = 2;
constexpr std::int64_t kOddRest = 77;
/// Constants beyond this are not reached: the oracle would take seconds.
constexpr std::int64_t kMaxTiles = 8;
/// A decode has more keys. A CTA of its kernels has several teams, each with a ring of stages, and all of these are
/// filled more than once. It has no more pairs than a usual trial.
constexpr std::int64_t kDecodeQueries = 16, kDecodeTiles = 16;
/// Fewer rows leave no room for every class of rows beside ordinary ones, nor fewer keys for rows of a single one. A
/// trial of so short a problem would verify, by an equal structure, rows that it never had.
constexpr std::int64_t kMinRows = 24;

/// Tiles that hold the largest integer constant of the program, and one more.
std::int64_t tiles_for(const Program& program, const std::function<bool(std::int64_t)>& left_out) {
  std::int64_t largest = 0;
  for (const Node& node : program.nodes()) {
    if (node.op != Op::kConstant || node.type != Type::kI32) continue;
    const std::int64_t value = std::abs(static_cast<std::int64_t>(ir::constant_i32(node)));
    if (left_out(value)) continue;
    // A constant beyond every length that can be tried (a limit, a sentinel) sets no length.
    if (value < kMaxTiles * kTile) largest = std::max(largest, value);
  }
  return std::clamp(largest / kTile + kFewTiles, kFewTiles, kMaxTiles);
}

std::int64_t trial_length(std::int64_t length, std::int64_t tiles) {
  const bool partial = length % kTile != 0;
  const std::int64_t wanted = tiles * kTile + (partial ? kOddRest : 0);
  // One row or key is a structure of its own.
  return length == 1 ? 1 : std::max(std::min(length, wanted), kMinRows);
}

/// Strides of a tensor that had another shape before, in their old order. Stride 0 stays, and so do gaps as far as they
/// decide alignment, because kernels read such tensors otherwise.
void pack(std::span<std::int64_t> strides, std::span<const std::int64_t> before, std::span<const std::int64_t> shape) {
  constexpr std::int64_t kAlignment = 64;
  std::vector<std::size_t> order(strides.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return strides[i]; });
  std::int64_t dense_before = 1, dense = 1;
  for (const std::size_t i : order) {
    if (strides[i] == 0) continue;
    const std::int64_t gap = before[i] > 1 ? std::max<std::int64_t>(strides[i] - dense_before, 0) : 0;
    if (before[i] > 1) dense_before = strides[i] * before[i];
    strides[i] = dense + (gap < kAlignment ? gap : kAlignment + gap % kAlignment);
    dense = strides[i] * shape[i];
  }
}

void pack(TensorLayout& layout, const problem::TensorShape& before, const problem::TensorShape& shape) {
  if (!layout.strides) return;
  const auto sizes = [](const problem::TensorShape& s) { return std::array{s.batch, s.heads, s.sequence, s.dim}; };
  Strides& own = *layout.strides;
  std::array strides{own.batch, own.head, own.sequence, own.dim};
  pack(strides, sizes(before), sizes(shape));
  own = {strides[0], strides[1], strides[2], strides[3]};
}

/// The block scales of q, k and v, for tensors that have become smaller.
void shrink_block_scales(AttentionProblem& problem, const AttentionProblem& before) {
  using problem::TensorRole;
  for (const TensorRole role : {TensorRole::kQ, TensorRole::kK, TensorRole::kV}) {
    const char* name = problem::descale_of(role);
    if (!problem::has_block_scales(problem, name)) continue;
    OperandSpec& spec = *std::ranges::find(problem.operands, std::string(name), &OperandSpec::name);
    const std::vector<std::int64_t> shape = problem::resized_block_scales(
        spec.shape, problem::memory_shape_of(before, role), problem::memory_shape_of(problem, role));
    const std::vector<std::int64_t> shape_before = std::exchange(spec.shape, shape);
    pack(spec.strides, shape_before, spec.shape);
  }
}

void shrink_operands(AttentionProblem& problem) {
  const std::array<std::int64_t, kAxisCount> sizes{problem.batch, problem.heads_q, problem.seq_q, problem.seq_kv};
  for (OperandSpec& spec : problem.operands) {
    const auto& decls = problem.program.operands();
    const auto decl = std::ranges::find(decls, spec.name, &OperandDecl::name);
    if (decl->is_table()) {
      // Operands that programs read may have any size; those of the problem's fields have its sizes.
      std::vector<std::int64_t> implied = problem::implied_table_shape(problem, spec.name);
      if (implied.empty()) continue;
      const std::vector<std::int64_t> before = std::exchange(spec.shape, std::move(implied));
      pack(spec.strides, before, spec.shape);
      continue;
    }
    const std::vector<std::int64_t> shape = std::exchange(spec.shape, {});
    for (std::size_t i = 0; i < kAxisCount; ++i) {
      if (decl->axes[i]) spec.shape.push_back(sizes[i]);
    }
    pack(spec.strides, shape, spec.shape);
  }
}

/// Tokens and pages for sequences that have become shorter. Some end early and lie in pages out of order.
void shrink_places(AttentionProblem& small) {
  const auto tokens = [&](std::int64_t length) { return std::max<std::int64_t>(small.batch * length * 3 / 4, 1); };
  if (small.tokens_q) small.tokens_q = tokens(small.seq_q);
  if (small.tokens_kv) small.tokens_kv = tokens(small.seq_kv);
  if (!small.paged) return;
  // The mask has them already, but a problem with pages must have them.
  small.lengths.kv = true;
  PagedKeys& paged = *small.paged;
  paged.blocks_per_sequence = (small.seq_kv + paged.block_size - 1) / paged.block_size + 1;
  paged.blocks = std::min(paged.blocks, small.batch * paged.blocks_per_sequence + 3);
}

/// Sizes for a program whose constants lie within so many tiles.
void shrink_sizes(AttentionProblem& small, std::int64_t tiles, const Breadth& breadth) {
  const AttentionProblem before = small;
  small.scale = small.effective_scale();
  small.batch = std::min(small.batch, breadth.batches);
  const std::int64_t group = std::min(small.heads_q / small.heads_kv, breadth.group);
  small.heads_kv = std::min(small.heads_kv, breadth.heads_kv);
  small.heads_q = small.heads_kv * group;
  const std::int64_t seq_q = small.seq_q, seq_kv = small.seq_kv;
  small.seq_q = trial_length(seq_q, tiles);
  // Unequal lengths stay unequal, and in the same order.
  const std::int64_t key_tiles = seq_q <= kDecodeQueries ? std::max(tiles, kDecodeTiles) : tiles;
  small.seq_kv = trial_length(seq_kv, seq_kv > seq_q ? key_tiles + 1 : key_tiles);
  if (seq_kv < seq_q && small.seq_kv >= small.seq_q) small.seq_kv = trial_length(seq_kv, tiles - 1);
  constexpr std::int64_t kApart = 8;
  if (seq_kv < seq_q && small.seq_kv >= small.seq_q) small.seq_q = small.seq_kv + kApart;
  if (seq_kv > seq_q && small.seq_kv <= small.seq_q) small.seq_kv = small.seq_q + kApart;
  shrink_places(small);
  using problem::TensorRole;
  const auto pack_as = [&](TensorLayout& layout, TensorRole role) {
    pack(layout, problem::memory_shape_of(before, role), problem::memory_shape_of(small, role));
  };
  pack_as(small.q, TensorRole::kQ);
  pack_as(small.k, TensorRole::kK);
  pack_as(small.v, TensorRole::kV);
  pack_as(small.o, TensorRole::kO);
  if (small.d_o) pack_as(*small.d_o, TensorRole::kDO);
  if (small.dq) pack_as(*small.dq, TensorRole::kDQ);
  if (small.dk) pack_as(*small.dk, TensorRole::kDK);
  if (small.dv) pack_as(*small.dv, TensorRole::kDV);
  shrink_operands(small);
  shrink_block_scales(small, before);
}

/// With smaller constants. A constant that is the difference of the problem's lengths (a mask that is aligned at the
/// end) becomes that of the small ones. Nothing if the structure changes.
std::optional<compiler::CompiledProblem> with_small_constants(const compiler::CompiledProblem& problem,
                                                              const Breadth& breadth) {
  AttentionProblem small = problem.problem;
  const std::int64_t shift = small.seq_kv - small.seq_q;
  const auto is_shift = [shift](std::int64_t value) {
    return std::abs(shift) > 1 && std::abs(std::abs(value) - std::abs(shift)) <= 1;
  };
  const auto smaller = small_constants(small.program, is_shift);
  const auto shrunk = with_constants(small.program, smaller);
  if (!shrunk) return std::nullopt;
  shrink_sizes(small, tiles_for(*shrunk, is_shift), breadth);
  const std::int64_t difference = std::abs(shift) - std::abs(small.seq_kv - small.seq_q);
  auto aligned = with_constants(small.program, [&](std::int64_t value) {
    if (!is_shift(value)) return smaller(value);
    return value < 0 ? value + difference : value - difference;
  });
  if (!aligned) return std::nullopt;
  small.program = std::move(*aligned);
  compiler::CompiledProblem trial = compiler::compile(small);
  if (!same_structure(trial, problem)) return std::nullopt;
  return trial;
}

}  // namespace

compiler::CompiledProblem trial_problem(const compiler::CompiledProblem& problem, const Breadth& breadth) {
  if (auto trial = with_small_constants(problem, breadth)) return std::move(*trial);
  AttentionProblem small = problem.problem;
  shrink_sizes(small, tiles_for(problem.forward.program, [](std::int64_t) { return false; }), breadth);
  return compiler::resized(problem, std::move(small));
}

}  // namespace scoremod::verification
