#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/gradient_target.hpp"
#include "base/bytes.hpp"

namespace scoremod::backend::cuda {

inline constexpr int kGradientThreads = 256;
/// Queries and keys that one block of threads of "gradients" takes.
inline constexpr std::int64_t kTileRows = 64;
inline constexpr std::int64_t kTileColumns = 128;

/// The text of the kernels of OperandGradients:
///
/// row_deltas(o, d_o, deltas): deltas[row] = sum over d of o d_o, one warp for each row, rows as in lse.
///
/// weighted_deltas(offset_b, offset_h, offset_q, offset_kv, scores, products, lse, deltas, weights, b, h0, q0, rows,
/// first_key, columns, block_rows, block_columns, operands...): in its place where has_weighted_deltas(): the mean of
/// what "gradients" calls products by the row's weights, called for each block of keys, `weights` being their sums.
///
/// gradients(offset_b, offset_h, offset_q, offset_kv, scores, products, lse, deltas, b, h0, q0, rows, k0,
/// first_key, columns, block_rows, block_columns, operands..., outputs...): the contributions of query heads h0, h0 +
/// 1, ... of one batch, from `scores` (scale Q K^T) and `products` (dO V^T), f32 [heads, block_rows, block_columns],
/// where row 0 is query q0 and column 0 key first_key. Blocks are tiles of keys, tiles of queries and heads. An output
/// is the gradient of a kStored target, else the sums, f32 or exact; those of kBlock are [b, h, block_rows,
/// block_columns] and start at query q0 and key k0. Heads that share sums of kBlock add to them in no fixed order.
///
/// store_I(sums, gradient, q0, rows, k0, columns, block_rows, block_columns): writes entries of targets[I] from the
/// sums, or 0 where `sums` is null; of a target with queries and keys those of one block, of others all.
struct GradientSource {
  std::string text;
  std::vector<std::uint32_t> operands;  ///< that "gradients" and "weighted_deltas" read
  std::vector<std::size_t> outputs;     ///< the targets that it has an output for
};

/// Whether so few rows or keys are summed over that o's rounding would be much of the error. A sink is one of a row's
/// weights, which the program does not know; and where the deltas' terms are given, o has them.
bool has_weighted_deltas(const AttentionProblem& problem);

GradientSource gradient_source(const compiler::CompiledProblem& problem, std::span<const GradientTarget> targets);

/// What decides what the text does, but for sizes, strides and the values of i32 constants: the same bytes for two
/// problems exactly when a trial of one says of the pass what a trial of the other would. How many blocks a problem's
/// scores come in is not in it: that is a matter of sizes, as it is how many tiles attention has.
Bytes structure_of_gradients(const compiler::CompiledProblem& problem, std::span<const GradientTarget> targets);

}  // namespace scoremod::backend::cuda
