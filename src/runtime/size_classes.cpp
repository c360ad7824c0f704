#include "runtime/size_classes.hpp"

#include <bit>
#include <cstdint>
#include <utility>

#include "base/canonical_bytes.hpp"

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

Bytes size_class(const AttentionProblem& p, const planner::Selection& selection, int device) {
  CanonicalWriter key;
  key.integer(device).boolean(selection.in_order).list(selection.backends.size());
  for (const backend::Backend* backend : selection.backends) key.text(backend->name());
  key.integer(p.seq_q <= kMostDecodeQueries ? -p.seq_q : quarter(p.seq_q)).integer(p.heads_q).integer(p.heads_kv);
  key.integer(quarter(p.batch)).integer(quarter(p.seq_kv));
  key.integer(quarter(p.tokens_q.value_or(0))).integer(quarter(p.tokens_kv.value_or(0)));
  return key.written();
}

Fastest FastestPlans::find(const Bytes& size_class) const {
  const std::scoped_lock lock(mutex_);
  const auto found = found_.find(size_class);
  return found == found_.end() || (found->second.serves && built_ahead_) ? Fastest{} : found->second;
}

void FastestPlans::remember(const Bytes& size_class, Fastest fastest) {
  const std::scoped_lock lock(mutex_);
  if (found_.size() >= kMostClasses) found_.clear();
  built_ahead_ = built_ahead_ || !fastest.backend->serves_all_sizes();
  found_.insert_or_assign(size_class, std::move(fastest));
}

}  // namespace scoremod::runtime
