#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "plans/erased_plan_cache.hpp"

namespace scoremod::plans {

/// The result of a build: a plan or, if `plan` is null, a refusal; both are kept. Builds throw failures that another
/// attempt might not have (memory, a driver), and nothing is kept.
template <class Plan>
struct PlanOrRefusal {
  std::shared_ptr<const Plan> plan;
  std::size_t bytes = 0;  ///< of memory that the plan occupies, for the cache's limit; an estimate will do
  std::string refusal;    ///< why there is no plan
};

/// The plans of one backend that this process has built, by key. Keys are compared in full. A cache with the life of
/// the process should never be destroyed (`static auto& cache = *new PlanCache<...>`). At exit the libraries that plans
/// belong to may be gone before them.
///
/// - get() of a key that is there costs a hash of the key and one lock. The first that asks for another key builds;
///   others that ask for it meanwhile wait for that one build. Builds run outside the lock, and those of different keys
///   side by side.
/// - When a build throws, all who waited for it get that exception, and the next to ask builds again.
/// - Beyond a limit of ErasedPlanCache::Limits the least recently used go. Whoever holds a plan keeps it: it is freed
///   with its last holder, never under the cache's lock.
template <class Plan>
class PlanCache {
 public:
  using Entry = PlanOrRefusal<Plan>;

  /// `name` is the backend's, for statistics. The cache takes part in the process's cache_statistics() and limits.
  explicit PlanCache(std::string name) : erased_(std::move(name)) {}

  /// The plan of this key, from the cache or from `build`, which must not ask this cache for the same key.
  Entry get(const Bytes& key, const std::function<Entry()>& build) {
    const auto erased_build = [&build] {
      Entry built = build();
      return ErasedPlan{std::move(built.plan), built.bytes, std::move(built.refusal)};
    };
    ErasedPlan found = erased_.get(key, erased_build);
    return {std::static_pointer_cast<const Plan>(std::move(found.plan)), found.bytes, std::move(found.refusal)};
  }

  /// Whether get() of this key builds nothing and waits for no build. Counts nothing.
  bool has(const Bytes& key) const { return erased_.has(key); }

  PlanCacheStatistics statistics() const { return erased_.statistics(); }
  void clear() { erased_.clear(); }
  void set_limits(const PlanCacheLimits& limits) { erased_.set_limits(limits); }

 private:
  ErasedPlanCache erased_;
};

}  // namespace scoremod::plans
