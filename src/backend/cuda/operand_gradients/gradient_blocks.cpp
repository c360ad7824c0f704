#include "backend/cuda/operand_gradients/gradient_blocks.hpp"

#include <algorithm>

#include "backend/cuda/operand_gradients/gradient_source.hpp"

namespace scoremod::backend::cuda {
namespace {

constexpr std::int64_t kRowAlignment = 32;
constexpr std::int64_t kMaxColumns = 4096;
constexpr std::int64_t kMinColumns = 256;
/// Heads of a block where there are enough queries: more heads mean fewer rows of each, hence products that are less
/// square.
constexpr std::int64_t kHeads = 8;

/// The largest grid along z.
constexpr std::int64_t kMaxHeads = 65535;

std::int64_t round_up(std::int64_t x, std::int64_t to) { return (x + to - 1) / to * to; }

}  // namespace

std::int64_t GradientBlocks::sums(const GradientTarget& target) const {
  switch (target.sum) {
    case GradientSum::kZero:
    case GradientSum::kStored: return 0;
    case GradientSum::kBlock: return target.extents[0] * target.extents[1] * rows * columns;
    case GradientSum::kReduced:
    case GradientSum::kTable: return target.entries();
  }
  return 0;
}

GradientBlocks gradient_blocks(const AttentionProblem& problem, std::span<const GradientTarget> targets) {
  GradientBlocks blocks;
  blocks.columns = std::min(round_up(problem.seq_kv, kRowAlignment), kMaxColumns);
  blocks.heads = std::min(problem.heads_q, kHeads);
  blocks.rows = std::min(kMaxBlockScores / (blocks.columns * blocks.heads), problem.seq_q);
  const auto block_sums = [&] {
    std::int64_t sums = 0;
    for (const GradientTarget& target : targets) {
      if (target.sum == GradientSum::kBlock) sums += blocks.sums(target);
    }
    return sums;
  };
  while (block_sums() > kMaxBlockSums && (blocks.rows > 1 || blocks.columns > kMinColumns)) {
    if (blocks.rows > kTileRows || blocks.columns <= kMinColumns)
      blocks.rows = (blocks.rows + 1) / 2;
    else
      blocks.columns = round_up(blocks.columns / 2, kRowAlignment);
  }
  blocks.heads = std::clamp(kMaxBlockScores / (blocks.rows * blocks.columns), std::int64_t{1},
                            std::min(problem.heads_q, kMaxHeads));
  return blocks;
}

KeyRange needed_keys(const compiler::CompiledProblem& problem, std::int64_t query_offset, std::int64_t key_offset,
                     KeyRange queries, KeyRange keys) {
  const masks::MaskClass& mask = problem.backward->mask;
  if (mask.kind == masks::MaskKind::kEmpty) return {};
  if (!mask.band) return keys;
  const masks::Band band = masks::top_left(*mask.band, problem.problem.seq_q, problem.problem.seq_kv);
  // d = kv - q in global indices, so that kv = d + q + shift in local ones.
  const std::int64_t shift = query_offset - key_offset;
  KeyRange needed = keys;
  if (band.left) needed.first = std::max(keys.first, queries.first + shift - *band.left);
  if (band.right) needed.end = std::min(keys.end, queries.end - 1 + shift + *band.right + 1);
  if (needed.empty()) return {};
  needed.first = keys.first + (needed.first - keys.first) / kRowAlignment * kRowAlignment;
  return needed;
}

}  // namespace scoremod::backend::cuda
