#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>

#include "scoremod/cache.hpp"

#include "base/bytes.hpp"
#include "base/fork_mutex.hpp"

namespace scoremod::plans {

/// A plan without its type, or a refusal, for PlanCache.
struct ErasedPlan {
  std::shared_ptr<const void> plan;
  std::size_t bytes = 0;
  std::string refusal;
};

/// A key's bytes, which are held elsewhere, and their hash, which is made once.
struct HashedKey {
  HashedKey(const Bytes& key, std::size_t known)
      : bytes(reinterpret_cast<const char*>(key.data()), key.size()), hash(known) {}
  explicit HashedKey(const Bytes& key) : HashedKey(key, 0) {
    // Not fnv1a(), whose steps wait for each other, byte by byte.
    hash = std::hash<std::string_view>{}(bytes);
  }
  bool operator==(const HashedKey& other) const { return bytes == other.bytes; }

  std::string_view bytes;
  std::size_t hash;
};
struct KeptHash {
  std::size_t operator()(const HashedKey& key) const noexcept { return key.hash; }
};

/// The machinery of PlanCache, which see. It knows keys and sizes, not plans.
class ErasedPlanCache {
 public:
  using Build = std::function<ErasedPlan()>;

  /// Takes part in the process's plan_cache_statistics() and limits.
  explicit ErasedPlanCache(std::string name);
  /// Has limits of its own, and no part in those.
  ErasedPlanCache(std::string name, const PlanCacheLimits& limits);
  ~ErasedPlanCache();
  ErasedPlanCache(const ErasedPlanCache&) = delete;
  ErasedPlanCache& operator=(const ErasedPlanCache&) = delete;

  ErasedPlan get(const Bytes& key, const Build& build);
  bool has(const Bytes& key) const;
  /// has(), or a thread is building it.
  bool has_or_builds(const Bytes& key) const;

  /// Drops this plan, which serves no longer; another one of the same key stays.
  void forget(const Bytes& key, const std::shared_ptr<const void>& plan);

  const std::string& name() const { return name_; }
  PlanCacheStatistics statistics() const;
  /// Forgets every plan and refusal. Builds under way go on and serve those who wait for them, but are not kept.
  void clear();
  void set_limits(const PlanCacheLimits& limits);

 private:
  struct Entry;
  using EntryPtr = std::shared_ptr<Entry>;

  ErasedPlan wait(std::unique_lock<std::mutex>& lock, const EntryPtr& entry);
  ErasedPlan build_entry(std::unique_lock<std::mutex>& lock, const EntryPtr& entry, const Build& build);
  /// The memory that an entry counts with: its plan's, and that of its own key.
  static std::size_t bytes_of(const Entry& entry);
  /// Takes in a finished entry, which comes as a list of one so that nothing can fail here.
  void keep(std::list<EntryPtr>& entry);
  /// Moves the least recently used to `evicted` until the limits hold. The caller frees them after it has unlocked.
  void evict(std::list<EntryPtr>& evicted);

  const std::string name_;
  mutable ForkMutex mutex_;
  /// Finished ones and those that are being built, by their own keys.
  std::unordered_map<HashedKey, EntryPtr, KeptHash> entries_;
  std::list<EntryPtr> recent_;  ///< finished ones, the last used first
  PlanCacheLimits limits_;
  PlanCacheStatistics statistics_;
};

/// Summed over the caches of the process.
PlanCacheStatistics plan_cache_statistics();

}  // namespace scoremod::plans
