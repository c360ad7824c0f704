#pragma once

#include <algorithm>
#include <cstddef>

#include "backend/cpu/attention_shape.hpp"

namespace scoremod::backend::cpu {

/// The most keys whose packed rows, `floats_per_key` each, take 256 KiB: half of the smallest second-level cache that
/// is common on servers.
inline std::size_t keys_that_fit(const AttentionShape& shape, std::size_t floats_per_key, std::size_t most) {
  constexpr std::size_t kPackedFloats = 65536;
  const std::size_t fitting = kPackedFloats / floats_per_key / kPanelColumns * kPanelColumns;
  const std::size_t needed = round_up(static_cast<std::size_t>(shape.seq_kv), kPanelColumns);
  return std::min({std::max<std::size_t>(fitting, 2 * kPanelColumns), most, needed});
}

/// Keys of one tile of the forward pass, which holds K and V. kRowBlock rows of its scores fit the first-level cache.
/// Depends on the problem only: the order in which sums are made, hence every bit of the result, follows from it.
inline std::size_t keys_per_tile(const AttentionShape& shape) {
  return keys_that_fit(shape, shape.padded_qk + shape.padded_v, 512);
}

/// Keys of one tile of the backward pass, which holds K twice, V, dK and dV. Depends on the problem only.
inline std::size_t keys_per_backward_tile(const AttentionShape& shape) {
  return keys_that_fit(shape, 2 * (shape.padded_qk + shape.padded_v), 256);
}

/// No more threads than pay for being started, which takes as long as some millions of operations.
inline int useful_threads(const AttentionShape& shape, int threads) {
  constexpr double kLeastFlops = 4e6;
  const double scores = static_cast<double>(shape.batch * shape.heads_q) * static_cast<double>(shape.seq_q) *
                        static_cast<double>(shape.seq_kv);
  const double flops = 2 * scores * static_cast<double>(shape.dim_qk + shape.dim_v);
  return std::clamp(static_cast<int>(std::min(flops / kLeastFlops, 1e6)), 1, threads);
}

/// Queries that one thread takes at a time: enough that packing K and V pays, but not so many that threads have nothing
/// to do. A multiple of kRowBlock, so that no result depends on it.
inline std::size_t queries_per_unit(const AttentionShape& shape, int threads) {
  constexpr std::size_t kMost = 40 * kRowBlock, kLeast = 4 * kRowBlock;
  const auto rows = static_cast<std::size_t>(shape.seq_q);
  const std::size_t heads = static_cast<std::size_t>(shape.batch * shape.heads_q);
  const std::size_t parts = std::max<std::size_t>(1, 4 * static_cast<std::size_t>(threads) / heads);
  const std::size_t share = round_up((rows + parts - 1) / parts, kRowBlock);
  return std::min(std::clamp(share, kLeast, kMost), round_up(rows, kRowBlock));
}

}  // namespace scoremod::backend::cpu
