#include "runtime/size_classes.hpp"

#include <bit>

namespace scoremod::runtime {
namespace {

constexpr std::size_t kMostClasses = 256;
/// Decode kernels are chosen by the very number of queries.
constexpr std::int64_t kMostDecodeQueries = 128;

/// Four numbers for each power of two.
std::int64_t quarter(std::int64_t size) {
  const auto bits = static_cast<std::uint64_t>(size);
  const int width = std::bit_width(bits);
  if (width < 3) return size;
  return std::int64_t{4} * width + static_cast<std::int64_t>((bits >> (width - 3)) & 3);
}

}  // namespace

SizeClass size_class(const AttentionProblem& p, const planner::Selection& selection, int device) {
  return {{device, static_cast<std::int64_t>(selection.in_order),
           p.seq_q <= kMostDecodeQueries ? -p.seq_q : quarter(p.seq_q), p.heads_q, p.heads_kv, quarter(p.batch),
           quarter(p.seq_kv), quarter(p.tokens_q.value_or(0)), quarter(p.tokens_kv.value_or(0))},
          selection.backends};
}

std::size_t SizeClassHash::operator()(const SizeClass& size_class) const {
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;  // 2^64 over the golden ratio: each bit moves the upper ones
  std::uint64_t hash = size_class.backends.size();
  for (const std::int64_t number : size_class.numbers)
    hash = (hash ^ (hash >> 32) ^ static_cast<std::uint64_t>(number)) * kOdd;
  return hash ^ (hash >> 32);
}

Fastest FastestPlans::find(const SizeClass& size_class) {
  const std::scoped_lock lock(mutex_);
  const auto found = found_.find(size_class);
  if (found == found_.end()) return {};
  if (found->second.serves && looks_ > 0) {
    --looks_;
    return {};
  }
  const Known& known = found->second;
  Fastest fastest{known.backend, known.forward.lock(), known.serves, known.backward.lock(), known.device};
  if (known.has_backward && fastest.backward == nullptr) fastest.forward = nullptr;
  return fastest;
}

void FastestPlans::remember(const SizeClass& size_class, const Fastest& fastest) {
  const std::scoped_lock lock(mutex_);
  if (found_.size() >= kMostClasses) found_.clear();
  if (!fastest.backend->serves_all_sizes()) looks_ = kMostLooks;
  const auto& [backend, forward, serves, backward, device] = fastest;
  found_.insert_or_assign(size_class, Known{backend, forward, backward, serves, backward != nullptr, device});
}

}  // namespace scoremod::runtime
