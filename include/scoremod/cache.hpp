#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "scoremod/export.hpp"

namespace scoremod {

// Plans of device backends take a second to build, so they are kept: in memory for the process, and in files for the
// next one. docs/reference/cache.md describes the files, their place, and the environment variables.

/// Limits of the plans in memory, for each backend that keeps plans. 0 keeps none.
struct PlanCacheLimits {
  std::size_t plans = 1024;
  std::size_t bytes =
      std::size_t{512} << 20;  ///< of memory that plans and their keys occupy, as far as backends can tell

  bool operator==(const PlanCacheLimits&) const = default;
};

/// Counts since the process began; entries and bytes are the current ones.
struct PlanCacheStatistics {
  std::uint64_t hits = 0;
  std::uint64_t misses = 0;     ///< each began a build
  std::uint64_t waits = 0;      ///< neither: waited for the build that another thread had begun
  std::uint64_t builds = 0;     ///< that gave a plan
  std::uint64_t refusals = 0;   ///< builds that ended in a refusal, which is kept as plans are
  std::uint64_t failures = 0;   ///< builds that ended in an error, which is not
  std::uint64_t evictions = 0;  ///< entries dropped because of the limits
  std::size_t entries = 0;
  std::size_t bytes = 0;
};

/// Counts of the store's use by this process since its folder was chosen.
struct PlanStoreStatistics {
  std::uint64_t hits = 0;
  std::uint64_t misses = 0;
  std::uint64_t rejected = 0;  ///< files that were damaged or of another format, and not used
  std::uint64_t writes = 0;
  std::uint64_t failed_writes = 0;
};

/// One kind of work that making plans takes, since the process began.
struct PlanWork {
  std::uint64_t count = 0;
  double milliseconds = 0;  ///< summed over threads
};

struct CacheStatistics {
  PlanCacheStatistics plans;  ///< summed over the backends
  PlanStoreStatistics store;
  PlanWork builds;  ///< plans and kernels that were compiled
  PlanWork loads;   ///< those that came from the store instead
  PlanWork trials;  ///< runs that decide whether a lowering is used, each with its own plan and its comparison
};

SCOREMOD_API CacheStatistics cache_statistics();

SCOREMOD_API PlanCacheLimits plan_cache_limits();
/// Drops at once those over the new limits. Attentions keep the plans that they use.
SCOREMOD_API void set_plan_cache_limits(const PlanCacheLimits& limits);
/// Drops every plan and every refusal from memory. Files stay.
SCOREMOD_API void clear_plan_cache();

/// The folder of the plan store; empty when it is off.
SCOREMOD_API std::string plan_store_directory();
/// Uses this folder from now on, and none when it is empty. It is made when something is written.
SCOREMOD_API void set_plan_store_directory(const std::string& directory);
/// Bytes that the store's files may take; beyond it the least recently used are deleted.
SCOREMOD_API std::uint64_t plan_store_limit();
SCOREMOD_API void set_plan_store_limit(std::uint64_t bytes);

/// A file of the store.
struct StoredFile {
  std::string name;  ///< within the directory
  std::uint64_t bytes = 0;
  std::int64_t last_used = 0;  ///< seconds since 1970-01-01 UTC
  std::string damage;          ///< why it is of no use; when not empty, nothing below is known
  std::string kind;            ///< "plan", "verification", "kernels", "choice" or "refusal"
  std::string library;         ///< the version of scoremod that wrote it, such as "0.1.0"
  std::string engine;          ///< the backend that it is for, such as "cudnn 9.19.0"
  std::string architecture;    ///< such as "sm_90 NVIDIA H200"
  std::string label;           ///< the planned problem, for people
};

/// Counts of deleted files and bytes.
struct StoreDeletion {
  std::uint64_t files = 0;
  std::uint64_t bytes = 0;
};

// All of these throw Error(kEnvironment) with the system's text when the directory can't be read, and take one that
// does not exist as empty. They are safe beside processes that use the store.

/// Every file of the store, the last used first. Reads headers only.
SCOREMOD_API std::vector<StoredFile> list_plan_store();
/// Like the listing above, but reads the files in full, so that every damage is found.
SCOREMOD_API std::vector<StoredFile> verify_plan_store();
/// Deletes the least recently used until the rest takes at most `max_bytes`, and the remains of writes that were
/// interrupted more than an hour ago.
SCOREMOD_API StoreDeletion prune_plan_store(std::uint64_t max_bytes);
/// Deletes damaged files, found as verify_plan_store() finds them.
SCOREMOD_API StoreDeletion remove_damaged_from_plan_store();
/// Deletes every file of the store, as pruning to 0 bytes does, and no other file of the directory.
SCOREMOD_API StoreDeletion clear_plan_store();

}  // namespace scoremod
