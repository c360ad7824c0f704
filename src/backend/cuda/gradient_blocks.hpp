#pragma once

#include <cstdint>
#include <span>

#include "backend/cuda/gradient_target.hpp"

namespace scoremod::backend::cuda {

/// The blocks that OperandGradients takes one after the other, and what they need of the workspace.
struct GradientBlocks {
  std::int64_t rows = 0;     ///< queries of a block
  std::int64_t columns = 0;  ///< keys of a block; the length of a row in memory
  std::int64_t heads = 0;    ///< query heads whose scores are there at once, all of one batch

  std::int64_t scores() const { return heads * rows * columns; }
  /// The sums of a target that has any, in floats.
  std::int64_t sums(const GradientTarget& target) const;
};

/// Scores of a block, for which the workspace holds two floats each. Blocks of a quarter of this stay in the cache of
/// an H200, yet took 1.04 to 1.6 times as long there: more launches, and products that are less square.
inline constexpr std::int64_t kMaxBlockScores = std::int64_t{1} << 24;
/// The sums of all kBlock targets of one block.
inline constexpr std::int64_t kMaxBlockSums = std::int64_t{1} << 24;

GradientBlocks gradient_blocks(const AttentionProblem& problem, std::span<const GradientTarget> targets);

/// Keys of a range that the mask's band lets some query of a block see.
struct KeyRange {
  std::int64_t first = 0, end = 0;
  bool empty() const { return first >= end; }
};

/// The keys among [first, end) that are needed for the local queries [first_query, end_query), given the call's
/// offsets: a range that holds all keys that the mask keeps, from a multiple of 32 after `first`.
KeyRange needed_keys(const compiler::CompiledProblem& problem, std::int64_t query_offset, std::int64_t key_offset,
                     KeyRange queries, KeyRange keys);

}  // namespace scoremod::backend::cuda
