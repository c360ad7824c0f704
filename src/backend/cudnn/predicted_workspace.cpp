#include "backend/cudnn/predicted_workspace.hpp"

#include <cstdint>

namespace scoremod::backend::cudnn {
namespace {

constexpr int kHopper = 9;
std::int64_t padded(std::int64_t size, std::int64_t to) { return (size + to - 1) / to * to; }

/// Sizes are up to 2^30 each, so that their products leave 64 bits; a double holds those, exactly as far as a device's
/// memory goes.
std::size_t saturated(double bytes) {
  constexpr double kMost = 0x1p62;
  return static_cast<std::size_t>(bytes < kMost ? bytes : kMost);
}

}  // namespace

std::size_t predicted_deterministic_workspace(const AttentionProblem& problem, int compute_capability) {
  const auto elements = static_cast<double>(size_of(problem.dtype));
  const double heads = static_cast<double>(problem.batch) * static_cast<double>(problem.heads_q);
  // The gradient of the scores, in whole tiles: dQ and dK are summed from it in a fixed order.
  const std::int64_t keys = padded(problem.seq_kv, compute_capability / 10 == kHopper ? 128 : 64);
  double bytes = heads * static_cast<double>(padded(problem.seq_q, 64)) * static_cast<double>(keys) * elements;
  bytes += heads * static_cast<double>(problem.seq_q) * sizeof(float);  // of each row, the sum of O dO
  if (problem.heads_kv != problem.heads_q) {
    const double key_rows = heads * static_cast<double>(problem.seq_kv);
    bytes += key_rows * static_cast<double>(problem.dim_qk + problem.dim_v) * elements;  // dK, dV of each query head
  }
  return saturated(bytes);
}

}  // namespace scoremod::backend::cudnn
