#include "verification/trial_problem.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>

#include "compiler/pipeline.hpp"
#include "ir/builder.hpp"
#include "problem/tensor_view.hpp"
#include "verification/small_constants.hpp"

namespace scoremod::verification {
namespace {

constexpr std::int64_t kTile = 128;
/// Two tiles and a bit: the first tile, one in the middle and a partial one are all there.
constexpr std::int64_t kFewTiles = 2;
constexpr std::int64_t kOddRest = 77;
/// Constants beyond this are not reached: the oracle would take seconds.
constexpr std::int64_t kMostTiles = 8;
constexpr std::int64_t kMostBatches = 2;
constexpr std::int64_t kMostGroup = 2;

/// Tiles that hold the largest integer constant of the program, and one more.
std::int64_t tiles_for(const Program& program, const std::function<bool(std::int64_t)>& left_out) {
  std::int64_t largest = 0;
  for (const Node& node : program.nodes()) {
    if (node.op != Op::kConstant || node.type != Type::kI32) continue;
    const std::int64_t value = std::abs(static_cast<std::int64_t>(ir::constant_i32(node)));
    if (left_out(value)) continue;
    // What lies beyond every length that can be tried (a limit, a sentinel) asks for nothing.
    if (value < kMostTiles * kTile) largest = std::max(largest, value);
  }
  return std::clamp(largest / kTile + kFewTiles, kFewTiles, kMostTiles);
}

std::int64_t trial_length(std::int64_t length, std::int64_t tiles) {
  const bool partial = length % kTile != 0;
  const std::int64_t wanted = tiles * kTile + (partial ? kOddRest : 0);
  return std::min(length, wanted);
}

/// Strides that keep the order of the dimensions, densely.
void pack(TensorLayout& layout, const problem::TensorShape& shape) {
  if (!layout.strides) return;
  std::array<std::pair<std::int64_t*, std::int64_t>, 4> dims{{{&layout.strides->batch, shape.batch},
                                                              {&layout.strides->head, shape.heads},
                                                              {&layout.strides->sequence, shape.sequence},
                                                              {&layout.strides->dim, shape.dim}}};
  std::ranges::stable_sort(dims, {}, [](const auto& dim) { return *dim.first; });
  std::int64_t stride = 1;
  for (const auto& [value, extent] : dims) {
    const bool repeats = *value == 0 && extent > 1;
    if (repeats) continue;
    *value = stride;
    stride *= extent;
  }
}

/// Strides of an operand of another shape before, in the order of its dimensions; what repeats (stride 0) goes on
/// repeating, and gaps stay, at least what of them decides alignment: kernels read such operands otherwise.
void pack(OperandSpec& spec, const std::vector<std::int64_t>& shape_before) {
  constexpr std::int64_t kAlignment = 64;
  std::vector<std::size_t> order(spec.strides.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return spec.strides[i]; });
  std::int64_t dense_before = 1, dense = 1;
  for (const std::size_t i : order) {
    if (spec.strides[i] == 0) continue;
    const std::int64_t gap = shape_before[i] > 1 ? std::max<std::int64_t>(spec.strides[i] - dense_before, 0) : 0;
    if (shape_before[i] > 1) dense_before = spec.strides[i] * shape_before[i];
    spec.strides[i] = dense + (gap < kAlignment ? gap : kAlignment + gap % kAlignment);
    dense = spec.strides[i] * spec.shape[i];
  }
}

void shrink_operands(AttentionProblem& problem) {
  const std::array<std::int64_t, kAxisCount> sizes{problem.batch, problem.heads_q, problem.seq_q, problem.seq_kv};
  for (OperandSpec& spec : problem.operands) {
    const auto& decls = problem.program.operands();
    const auto decl = std::ranges::find(decls, spec.name, &OperandDecl::name);
    if (decl->is_table()) continue;
    const std::vector<std::int64_t> shape = std::exchange(spec.shape, {});
    for (std::size_t i = 0; i < kAxisCount; ++i) {
      if (decl->axes[i]) spec.shape.push_back(sizes[i]);
    }
    pack(spec, shape);
  }
}

/// Sizes for a program whose constants lie within so many tiles.
void shrink_sizes(AttentionProblem& small, std::int64_t tiles) {
  small.scale = small.effective_scale();
  small.batch = std::min(small.batch, kMostBatches);
  const std::int64_t group = std::min(small.heads_q / small.heads_kv, kMostGroup);
  small.heads_kv = std::min(small.heads_kv, kMostBatches);
  small.heads_q = small.heads_kv * group;
  const std::int64_t seq_q = small.seq_q, seq_kv = small.seq_kv;
  small.seq_q = trial_length(seq_q, tiles);
  // Unequal lengths stay unequal, and in the same order.
  small.seq_kv = trial_length(seq_kv, seq_kv > seq_q ? tiles + 1 : tiles);
  if (seq_kv < seq_q && small.seq_kv >= small.seq_q) small.seq_kv = trial_length(seq_kv, tiles - 1);
  using problem::TensorRole;
  pack(small.q, problem::shape_of(small, TensorRole::kQ));
  pack(small.k, problem::shape_of(small, TensorRole::kK));
  pack(small.v, problem::shape_of(small, TensorRole::kV));
  pack(small.o, problem::shape_of(small, TensorRole::kO));
  shrink_operands(small);
}

/// With smaller constants, and what is the difference of the problem's lengths (a mask that is aligned at the end) that
/// of the small one's. Nothing where its structure is another.
std::optional<compiler::CompiledProblem> with_small_constants(const compiler::CompiledProblem& problem) {
  AttentionProblem small = problem.problem;
  const std::int64_t shift = small.seq_kv - small.seq_q;
  const auto is_shift = [shift](std::int64_t value) {
    return std::abs(shift) > 1 && std::abs(std::abs(value) - std::abs(shift)) <= 1;
  };
  const auto smaller = small_constants(small.program, is_shift);
  const auto shrunk = with_constants(small.program, smaller);
  if (!shrunk) return std::nullopt;
  shrink_sizes(small, tiles_for(*shrunk, is_shift));
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

compiler::CompiledProblem trial_problem(const compiler::CompiledProblem& problem) {
  if (auto trial = with_small_constants(problem)) return std::move(*trial);
  AttentionProblem small = problem.problem;
  shrink_sizes(small, tiles_for(problem.forward.program, [](std::int64_t) { return false; }));
  return compiler::resized(problem, std::move(small));
}

}  // namespace scoremod::verification
