#pragma once

#include <cstdint>
#include <optional>

#include "scoremod/problem.hpp"

#include "check/check_case.hpp"

namespace scoremod::test {

/// A forward with heads wider than 256, of one KV head in two batches, with a learned sink, the LSE and the largest
/// logit.
struct WideCase {
  const char* name;
  std::int64_t heads_q, seq_q, seq_kv, dim_qk, dim_v;
  DType dtype = DType::kBF16;
  const char* program = "value = score";
  bool unaligned = false;  ///< rows of v and o begin at odd elements
  std::int64_t page = 0;   ///< rows of a page, where keys are paged
  std::optional<DType> dtype_kv = std::nullopt;
};
checking::CheckCase check_case(const WideCase& from);

/// Prompts, and decode steps, small enough for a host.
inline constexpr WideCase kWideHeads[] = {
    {"512 dims", 2, 70, 90, 512, 512},
    {"576 dims of keys", 2, 33, 50, 576, 512, DType::kF16, "value = 20.0 * tanh(score / 20.0); keep = kv_idx <= q_idx"},
    {"parts that overlap", 1, 40, 70, 64, 300},
    {"three parts of rows that are not aligned", 1, 20, 40, 264, 576, DType::kBF16, "value = score", true},
    {"keys of 320 dims and narrow values", 2, 20, 40, 320, 40},
    {"floats", 1, 40, 50, 512, 512, DType::kF32, "value = score; keep = kv_idx - q_idx < 7"},
};
inline constexpr WideCase kWideDecodes[] = {
    // Latent attention: 512 dims of each key are its value.
    {"a latent cache", 16, 1, 330, 576, 512},
    {"two queries at the end", 8, 2, 200, 576, 512, DType::kBF16, "value = score; keep = kv_idx <= q_idx + 198"},
    {"pages", 4, 1, 100, 512, 512, DType::kF16, "value = score", false, 16},
    {"parts that overlap", 4, 1, 130, 64, 300},
    {"FP8 keys", 4, 1, 200, 512, 512, DType::kBF16, "value = score", false, 0, DType::kE4M3},
    {"two tiles of rows", 128, 1, 210, 576, 512},
    {"rows of two queries in the last tile", 24, 3, 140, 320, 384, DType::kF16,
     "value = 20.0 * tanh(score / 20.0); keep = kv_idx <= q_idx + 137"},
    {"rows of v at odd elements", 4, 1, 130, 576, 512, DType::kBF16, "value = score", true},
    {"few dims of k", 8, 1, 150, 40, 512, DType::kBF16, "value = score", false, 16},
    {"pages that TMA loads", 16, 2, 600, 576, 512, DType::kBF16, "value = score; keep = kv_idx <= q_idx + 590", false,
     64},
    {"a window over pages of half a tile", 8, 1, 400, 512, 384, DType::kF16,
     "value = score; keep = kv_idx > 90 & kv_idx < 310", false, 32},
    {"unaligned FP8 parts", 4, 1, 130, 320, 300, DType::kBF16, "value = score", false, 0, DType::kE5M2},
};

}  // namespace scoremod::test
