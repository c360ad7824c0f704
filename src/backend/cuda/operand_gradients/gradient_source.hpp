#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/operand_gradients/gradient_target.hpp"
#include "base/bytes.hpp"

namespace scoremod::backend::cuda {

inline constexpr int kGradientThreads = 256;
/// Queries and keys that one CTA of "gradients" takes.
inline constexpr std::int64_t kTileRows = 64;
inline constexpr std::int64_t kTileColumns = 128;

/// The text of the kernels of OperandGradients:
///
/// row_deltas(o, d_o, deltas): deltas[row] = sum over d of o d_o, one warp for each row, rows as in lse.
///
/// weighted_deltas(offset_b, offset_h, offset_q, offset_kv, scores, products, lse, deltas, weights, b, h0, q0, rows,
/// first_key, columns, block_rows, block_columns, operands...): replaces row_deltas if has_weighted_deltas(). A delta
/// is the mean of the row's `products` by its weights. It is called for each block of keys; `weights` are the weights'
/// sums.
///
/// gradients(offset_b, offset_h, offset_q, offset_kv, scores, products, lse, deltas, b, h0, q0, rows, k0, first_key,
/// columns, block_rows, block_columns, operands..., outputs...): the contributions of query heads from h0 on of one
/// batch. It reads `scores` (scale Q K^T) and `products` (dO V^T), f32 [heads, block_rows, block_columns]. Row 0 is
/// query q0 and column 0 key first_key. The grid has tiles of keys, tiles of queries and heads. An output is the
/// gradient of a kStored target, else the sums, f32 or exact. Sums of kBlock are [b, h, block_rows, block_columns] and
/// start at query q0 and key k0; heads that share them add in no fixed order.
///
/// store_I(sums, gradient, q0, rows, k0, columns, block_rows, block_columns): writes entries of targets[I] from the
/// sums, or 0 if `sums` is null. A target with queries and keys gets the entries of one block, any other all of its
/// entries.
struct GradientSource {
  std::string text;
  std::vector<std::uint32_t> operands;  ///< that "gradients" and "weighted_deltas" read
  std::vector<std::size_t> outputs;     ///< the targets that it has an output for
};

/// Whether so few rows or keys are summed over that o's rounding would be much of the error. A sink is one of a row's
/// weights, which the program does not know; and where the deltas' terms are given, o has them.
bool has_weighted_deltas(const AttentionProblem& problem);

GradientSource gradient_source(const compiler::CompiledProblem& problem, std::span<const GradientTarget> targets);

/// The bytes that determine the text's behaviour, without sizes, strides and the values of i32 constants. They are
/// equal for two problems exactly if a trial of one verifies the pass of the other. The number of blocks is left out
/// because it is a matter of sizes, like attention's number of tiles.
Bytes structure_of_gradients(const compiler::CompiledProblem& problem, std::span<const GradientTarget> targets);

}  // namespace scoremod::backend::cuda
