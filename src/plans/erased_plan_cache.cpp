#include "plans/erased_plan_cache.hpp"

#include <algorithm>
#include <sys/types.h>
#include <utility>
#include <vector>

#include "base/fail.hpp"
#include "base/fork_mutex.hpp"
#include "base/process_id.hpp"

namespace scoremod {
namespace plans {
namespace {

/// The caches of the process and their shared state.
struct Registry {
  ForkMutex mutex;
  std::vector<ErasedPlanCache*> caches;
  PlanCacheLimits limits;
};

/// Never destroyed, because caches with the life of the process are not either. Freeing them at exit, in an unspecified
/// order, would call into libraries that are already unloaded.
Registry& registry() {
  static auto& made = *new Registry;
  return made;
}

void add(const PlanCacheStatistics& more, PlanCacheStatistics* sum) {
  const auto& [hits, misses, waits, builds, refusals, failures, evictions, entries, bytes] = more;
  sum->hits += hits;
  sum->misses += misses;
  sum->waits += waits;
  sum->builds += builds;
  sum->refusals += refusals;
  sum->failures += failures;
  sum->evictions += evictions;
  sum->entries += entries;
  sum->bytes += bytes;
}

}  // namespace

/// One key. The cache's mutex guards every field but `key`, `builder` and `done`'s own.
struct ErasedPlanCache::Entry {
  Entry(Bytes of, std::size_t hash, std::thread::id by) : bytes(std::move(of)), key(bytes, hash), builder(by) {}

  const Bytes bytes;
  const HashedKey key;  ///< of `bytes`
  const std::thread::id builder;
  const pid_t process = process_id();  ///< a forked child has none of its parent's builders
  bool finished = false;
  ErasedPlan value;
  std::exception_ptr failure;
  std::condition_variable done;
  std::list<EntryPtr>::iterator place;  ///< in recent_; valid while the entry is kept
};

ErasedPlanCache::ErasedPlanCache(std::string name) : name_(std::move(name)) {
  const std::lock_guard lock(registry().mutex);
  limits_ = registry().limits;
  registry().caches.push_back(this);
}

ErasedPlanCache::ErasedPlanCache(std::string name, const PlanCacheLimits& limits)
    : name_(std::move(name)), limits_(limits) {}

ErasedPlanCache::~ErasedPlanCache() {
  const std::lock_guard lock(registry().mutex);
  std::erase(registry().caches, this);
}

ErasedPlan ErasedPlanCache::get(const Bytes& key, const Build& build) {
  const HashedKey hashed(key);
  std::unique_lock<std::mutex> lock(mutex_);
  auto found = entries_.find(hashed);
  if (found != entries_.end() && !found->second->finished && found->second->process != process_id()) {
    entries_.erase(found);
    found = entries_.end();
  }
  if (found == entries_.end()) {
    const auto entry = std::make_shared<Entry>(key, hashed.hash, std::this_thread::get_id());
    entries_.emplace(entry->key, entry);
    ++statistics_.misses;
    return build_entry(lock, entry, build);
  }
  const EntryPtr entry = found->second;
  if (!entry->finished) return wait(lock, entry);
  ++statistics_.hits;
  recent_.splice(recent_.begin(), recent_, entry->place);
  return entry->value;
}

bool ErasedPlanCache::has(const Bytes& key) const {
  const HashedKey hashed(key);
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(hashed);
  return found != entries_.end() && found->second->finished;
}

bool ErasedPlanCache::has_or_builds(const Bytes& key) const {
  const HashedKey hashed(key);
  const std::lock_guard lock(mutex_);
  return entries_.contains(hashed);
}

void ErasedPlanCache::forget(const Bytes& key, const std::shared_ptr<const void>& plan) {
  const HashedKey hashed(key);
  std::list<EntryPtr> dropped;
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(hashed);
  if (found == entries_.end() || !found->second->finished || found->second->value.plan != plan) return;
  const EntryPtr entry = found->second;
  entries_.erase(found);
  dropped.splice(dropped.end(), recent_, entry->place);
  statistics_.bytes -= bytes_of(*entry);
  --statistics_.entries;
}

ErasedPlan ErasedPlanCache::wait(std::unique_lock<std::mutex>& lock, const EntryPtr& entry) {
  if (entry->builder == std::this_thread::get_id()) {
    fail_bug("the build of a plan asks the ", name_, " plan cache for the plan that it builds");
  }
  ++statistics_.waits;
  entry->done.wait(lock, [&] { return entry->finished; });
  if (entry->failure) std::rethrow_exception(entry->failure);
  return entry->value;
}

ErasedPlan ErasedPlanCache::build_entry(std::unique_lock<std::mutex>& lock, const EntryPtr& entry, const Build& build) {
  lock.unlock();
  ErasedPlan value;
  std::exception_ptr failure;
  std::list<EntryPtr> kept, evicted;
  try {
    // Without memory for it the entry fails as a build does. An unfinished one would be waited for without end.
    kept.push_back(entry);
    value = build();
    if (value.plan == nullptr && value.refusal.empty()) fail_bug("a build gave neither a plan nor a refusal");
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  entry->finished = true;
  entry->value = std::move(value);
  entry->failure = failure;
  ++(failure ? statistics_.failures : entry->value.plan == nullptr ? statistics_.refusals : statistics_.builds);
  const auto found = entries_.find(entry->key);
  // clear() may have come between, and then another build of this key.
  const bool still_wanted = found != entries_.end() && found->second == entry;
  if (still_wanted && failure) entries_.erase(found);
  if (still_wanted && !failure) {
    keep(kept);
    evict(evicted);
  }
  lock.unlock();
  entry->done.notify_all();
  if (failure) std::rethrow_exception(failure);
  return entry->value;
}

std::size_t ErasedPlanCache::bytes_of(const Entry& entry) { return entry.value.bytes + entry.bytes.size(); }

void ErasedPlanCache::keep(std::list<EntryPtr>& entry) {
  const EntryPtr& kept = entry.front();
  kept->place = entry.begin();
  recent_.splice(recent_.begin(), entry);
  statistics_.bytes += bytes_of(*kept);
  ++statistics_.entries;
}

void ErasedPlanCache::evict(std::list<EntryPtr>& evicted) {
  while (!recent_.empty() && (statistics_.entries > limits_.plans || statistics_.bytes > limits_.bytes)) {
    const EntryPtr& last = recent_.back();
    entries_.erase(last->key);
    statistics_.bytes -= bytes_of(*last);
    --statistics_.entries;
    ++statistics_.evictions;
    evicted.splice(evicted.end(), recent_, last->place);
  }
}

PlanCacheStatistics ErasedPlanCache::statistics() const {
  const std::lock_guard lock(mutex_);
  return statistics_;
}

void ErasedPlanCache::clear() {
  std::list<EntryPtr> dropped;
  const std::lock_guard lock(mutex_);
  entries_.clear();
  dropped.swap(recent_);
  statistics_.entries = 0;
  statistics_.bytes = 0;
}

void ErasedPlanCache::set_limits(const PlanCacheLimits& limits) {
  std::list<EntryPtr> evicted;
  const std::lock_guard lock(mutex_);
  limits_ = limits;
  evict(evicted);
}

PlanCacheStatistics plan_cache_statistics() {
  PlanCacheStatistics sum;
  const std::lock_guard lock(registry().mutex);
  for (const ErasedPlanCache* cache : registry().caches) add(cache->statistics(), &sum);
  return sum;
}

}  // namespace plans

using plans::registry;

PlanCacheLimits plan_cache_limits() {
  const std::lock_guard lock(registry().mutex);
  return registry().limits;
}

void set_plan_cache_limits(const PlanCacheLimits& limits) {
  const std::lock_guard lock(registry().mutex);
  registry().limits = limits;
  for (plans::ErasedPlanCache* cache : registry().caches) cache->set_limits(limits);
}

void clear_plan_cache() {
  const std::lock_guard lock(registry().mutex);
  for (plans::ErasedPlanCache* cache : registry().caches) cache->clear();
}

}  // namespace scoremod
