#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "scoremod/call.hpp"

#include "backend/cuda/operand_gradients/gradient_target.hpp"

namespace scoremod::backend::cuda {

/// The blocks that OperandGradients takes one after the other, and their needs of the workspace.
struct GradientBlocks {
  std::int64_t rows = 0;     ///< queries of a block
  std::int64_t columns = 0;  ///< keys of a block; the length of a row in memory
  std::int64_t heads = 0;    ///< query heads whose scores are there at once, all of one batch

  std::int64_t scores() const { return heads * rows * columns; }
  /// Whether a row's keys are in one block.
  bool have_all_keys(const AttentionProblem& problem) const { return problem.seq_kv <= columns; }
  /// The sums of a target that has any, in floats.
  std::int64_t sums(const GradientTarget& target) const;
};

/// Scores of a block; the workspace holds two floats for each. Blocks of a quarter of this stay in the cache of an
/// H200, yet took 1.04 to 1.6 times as long there. They need more launches, and their products are less square.
inline constexpr std::int64_t kMaxBlockScores = std::int64_t{1} << 24;
/// The sums of all kBlock targets of one block.
inline constexpr std::int64_t kMaxBlockSums = std::int64_t{1} << 24;

GradientBlocks gradient_blocks(const AttentionProblem& problem, std::span<const GradientTarget> targets);

/// Keys of a range that the mask's band lets some query of a block see.
struct KeyRange {
  std::int64_t first = 0, end = 0;
  bool empty() const { return first >= end; }
};

/// The keys among [first, end) that the local queries [first_query, end_query) need, given the call's offsets. The
/// range holds all keys that the mask keeps, and begins at a multiple of 32 after `first`.
KeyRange needed_keys(const compiler::CompiledProblem& problem, std::int64_t query_offset, std::int64_t key_offset,
                     KeyRange queries, KeyRange keys);

/// Calls body once for each cuBLAS product: the heads [first, end) that share one KV head form one stack of planes. If
/// no KV head is shared, all heads do.
template <class Body>
void for_each_stack(std::int64_t group, std::int64_t first, std::int64_t end, const Body& body) {
  if (group == 1) return body(first, end);
  while (first < end) {
    const std::int64_t last = std::min(end, (first / group + 1) * group);
    body(first, last);
    first = last;
  }
}

/// Calls body(queries, keys, needed keys) for every block.
template <class Body>
void for_each_block(const compiler::CompiledProblem& compiled, const GradientBlocks& blocks,
                    const IndexOffsets& offsets, const Body& body) {
  const AttentionProblem& p = compiled.problem;
  for (std::int64_t q = 0; q < p.seq_q; q += blocks.rows) {
    for (std::int64_t k = 0; k < p.seq_kv; k += blocks.columns) {
      const KeyRange queries{q, std::min(q + blocks.rows, p.seq_q)}, keys{k, std::min(k + blocks.columns, p.seq_kv)};
      body(queries, keys, needed_keys(compiled, offsets.query, offsets.key, queries, keys));
    }
  }
}

}  // namespace scoremod::backend::cuda
