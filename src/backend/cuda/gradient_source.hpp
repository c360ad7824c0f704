#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::cuda {

/// How the gradient of one operand is summed.
enum class GradientSum : std::uint8_t {
  kZero,     ///< nothing contributes: the value does not depend on the operand
  kStored,   ///< each entry gets one contribution, which the kernel writes where it belongs
  kBlock,    ///< varies along queries and keys, and is summed over batches or heads: sums of one block at a time
  kReduced,  ///< varies along queries or keys or neither: sums of all entries, to which blocks of threads add
  kTable,    ///< scattered: sums of all entries
};

/// The gradient of one operand.
struct GradientTarget {
  std::uint32_t operand = 0;
  GradientSum sum = GradientSum::kZero;
  /// Of the sums, dense in the order b, h, q, kv: 1 along axes that the operand lacks. A table's own extents.
  std::array<std::int64_t, kAxisCount> extents{1, 1, 1, 1};

  /// The sums are exact ones (exact_sum.hpp), which come out the same in whatever order blocks of threads add to them;
  /// else of float32. Of a deterministic problem, where several blocks of threads of one launch add to a sum.
  bool exact = false;

  std::int64_t sum_bytes() const;
  std::int64_t entries() const { return extents[0] * extents[1] * extents[2] * extents[3]; }
  bool has(Axis axis) const { return axes[static_cast<std::size_t>(axis)]; }
  std::array<bool, kAxisCount> axes{};
};

/// One for each of `operands`, float operands of the problem's program.
std::vector<GradientTarget> gradient_targets(const compiler::CompiledProblem& problem,
                                             std::span<const std::uint32_t> operands);

inline constexpr int kGradientThreads = 256;
/// Queries and keys that one block of threads of "gradients" takes.
inline constexpr std::int64_t kTileRows = 64;
inline constexpr std::int64_t kTileColumns = 128;

/// The text of the kernels of OperandGradients:
///
/// row_deltas(o, d_o, deltas): deltas[row] = sum over d of o d_o, one warp for each row, rows as in lse.
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
  std::vector<std::uint32_t> operands;  ///< that "gradients" reads
  std::vector<std::size_t> outputs;     ///< the targets that it has an output for
};

GradientSource gradient_source(const compiler::CompiledProblem& problem, std::span<const GradientTarget> targets);

}  // namespace scoremod::backend::cuda
