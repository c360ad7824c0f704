#include "backend/cuda/operand_gradients/operand_gradients_time.hpp"

#include <algorithm>

#include "backend/cuda/operand_gradients/gradient_target.hpp"
#include "backend/measured_at.hpp"

namespace scoremod::backend::cuda {
namespace {

// The two MMAs, and the generated kernel for sums of few entries, in bf16, in which times were measured. With a causal
// mask the kernel takes half as long, the MMAs not.
constexpr double kProducts = 1.45, kKernel = 4.64;
/// More milliseconds for sums along queries and keys, in memory that the cache mostly holds and mostly doesn't, and for
/// those of tables.
constexpr double kCachedBlock = 2.7, kBlock = 6.8, kTable = 4.3;
constexpr std::int64_t kCachedBytes = std::int64_t{128} << 20;

double beyond_few_entries(const GradientTarget& target) {
  switch (target.sum) {
    case GradientSum::kZero:
    case GradientSum::kReduced: return 0;
    case GradientSum::kStored:
    case GradientSum::kBlock: return target.sum_bytes() <= kCachedBytes ? kCachedBlock : kBlock;
    case GradientSum::kTable: return kTable;
  }
  return 0;
}

/// The part of all pairs of a query and a key that the mask's band keeps.
double kept_share(const compiler::CompiledProblem& problem) {
  const AttentionProblem& p = problem.problem;
  if (!problem.backward || !problem.backward->mask.band) return 1;
  const masks::Band band = masks::top_left(*problem.backward->mask.band, p.seq_q, p.seq_kv);
  double pairs = 0;
  for (std::int64_t q = 0; q < p.seq_q; ++q) {
    const std::int64_t first = band.left ? std::max<std::int64_t>(0, q - *band.left) : 0;
    const std::int64_t last = band.right ? std::min(p.seq_kv - 1, q + *band.right) : p.seq_kv - 1;
    pairs += static_cast<double>(std::max<std::int64_t>(0, last - first + 1));
  }
  return pairs / (static_cast<double>(p.seq_q) * static_cast<double>(p.seq_kv));
}

}  // namespace

double operand_gradients_time(const compiler::CompiledProblem& problem, std::span<const std::uint32_t> operands,
                              const DeviceRates& rates) {
  const AttentionProblem& p = problem.problem;
  double kernel = kKernel;
  for (const GradientTarget& target : gradient_targets(problem, operands)) kernel += beyond_few_entries(target);
  const double pairs = static_cast<double>(p.batch * p.heads_q) * static_cast<double>(p.seq_q) *
                       static_cast<double>(p.seq_kv) / kMeasuredPairs;
  const double products = kProducts * static_cast<double>(p.dim_qk + p.dim_v) / kMeasuredDims *
                          kMeasuredOn.multiprocessors * kMeasuredOn.clock_khz /
                          (rates.multiprocessors * rates.clock_khz);
  // The kernel waits for memory.
  return pairs * (products + kernel * kept_share(problem) * kMeasuredOn.bytes_per_ms / rates.bytes_per_ms);
}

}  // namespace scoremod::backend::cuda
