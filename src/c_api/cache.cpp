#include "scoremod/cache.hpp"

#include <nlohmann/json.hpp>

#include "scoremod/attention_cache.hpp"
#include "scoremod/c_api.h"

#include "c_api/guard.hpp"

namespace scoremod::c_api {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const AttentionCacheStatistics& statistics) {
  const auto& [hits, misses, waits, failures, evictions, entries] = statistics;
  return {{"hits", hits},         {"misses", misses},       {"waits", waits},
          {"failures", failures}, {"evictions", evictions}, {"entries", entries}};
}

Json json_of(const CompileCounts& counts) {
  const auto& [problems, forwards, backwards] = counts;
  return {{"problems", problems}, {"forwards", forwards}, {"backwards", backwards}};
}

Json json_of(const PlanCacheStatistics& statistics) {
  const auto& [hits, misses, waits, builds, refusals, failures, evictions, entries, bytes] = statistics;
  return {{"hits", hits},           {"misses", misses},     {"waits", waits},
          {"builds", builds},       {"refusals", refusals}, {"failures", failures},
          {"evictions", evictions}, {"entries", entries},   {"bytes", bytes}};
}

Json json_of(const PlanStoreStatistics& statistics) {
  const auto& [hits, misses, rejected, writes, failed_writes] = statistics;
  return {
      {"hits", hits}, {"misses", misses}, {"rejected", rejected}, {"writes", writes}, {"failed_writes", failed_writes}};
}

Json json_of(const PlanWork& work) { return {{"count", work.count}, {"milliseconds", work.milliseconds}}; }

Json json_of(const StoredFile& file) {
  const auto& [name, bytes, last_used, damage, kind, library, engine, architecture, label] = file;
  return {{"name", name},       {"bytes", bytes},   {"last_used", last_used},       {"damage", damage}, {"kind", kind},
          {"library", library}, {"engine", engine}, {"architecture", architecture}, {"label", label}};
}

Json json_of(const StoreDeletion& deletion) { return {{"files", deletion.files}, {"bytes", deletion.bytes}}; }

Json statistics_json() {
  const CacheStatistics statistics = cache_statistics();
  const PlanCacheLimits limits = plan_cache_limits();
  Json attentions = json_of(attention_cache_statistics());
  attentions["limit"] = attention_cache_limit();
  Json plans = json_of(statistics.plans);
  plans["limits"] = {{"plans", limits.plans}, {"bytes", limits.bytes}};
  Json store = json_of(statistics.store);
  store["directory"] = plan_store_directory();
  store["limit_bytes"] = plan_store_limit();
  return {{"attentions", std::move(attentions)},
          {"compiled", json_of(compile_counts())},
          {"plans", std::move(plans)},
          {"store", std::move(store)},
          {"builds", json_of(statistics.builds)},
          {"loads", json_of(statistics.loads)},
          {"trials", json_of(statistics.trials)}};
}

void give_json(const Json& json, char** destination) {
  // Names of files and devices need not be UTF-8.
  give(json.dump(-1, ' ', false, Json::error_handler_t::replace), destination);
}

/// A function whose only result is the count of deleted files, which the caller may not want.
template <class Delete>
scoremod_status delete_files(char** deletion_json, char** message, const Delete& action) {
  if (deletion_json != nullptr) *deletion_json = nullptr;
  return guard(message, [&] {
    const StoreDeletion deletion = action();
    if (deletion_json != nullptr) give_json(json_of(deletion), deletion_json);
  });
}

}  // namespace
}  // namespace scoremod::c_api

using scoremod::c_api::delete_files;
using scoremod::c_api::guard;
using scoremod::c_api::require;

extern "C" {

scoremod_status scoremod_cache_statistics(char** statistics_json, char** message) {
  if (statistics_json != nullptr) *statistics_json = nullptr;
  return guard(message, [&] {
    require(statistics_json, "statistics_json");
    scoremod::c_api::give_json(scoremod::c_api::statistics_json(), statistics_json);
  });
}

scoremod_status scoremod_plan_cache_set_limits(size_t plans, size_t bytes, char** message) {
  return guard(message, [&] { scoremod::set_plan_cache_limits({plans, bytes}); });
}

scoremod_status scoremod_attention_cache_set_limit(size_t attentions, char** message) {
  return guard(message, [&] { scoremod::set_attention_cache_limit(attentions); });
}

scoremod_status scoremod_attention_cache_clear(char** message) {
  return guard(message, scoremod::clear_attention_cache);
}

scoremod_status scoremod_plan_cache_clear(char** message) { return guard(message, scoremod::clear_plan_cache); }

scoremod_status scoremod_plan_store_set_directory(const char* directory, char** message) {
  return guard(message, [&] {
    require(directory, "directory");
    scoremod::set_plan_store_directory(directory);
  });
}

scoremod_status scoremod_plan_store_set_limit(uint64_t bytes, char** message) {
  return guard(message, [&] { scoremod::set_plan_store_limit(bytes); });
}

scoremod_status scoremod_plan_store_files(int32_t verify, char** files_json, char** message) {
  if (files_json != nullptr) *files_json = nullptr;
  return guard(message, [&] {
    require(files_json, "files_json");
    auto files = scoremod::c_api::Json::array();
    for (const scoremod::StoredFile& file : verify != 0 ? scoremod::verify_plan_store() : scoremod::list_plan_store()) {
      files.push_back(scoremod::c_api::json_of(file));
    }
    scoremod::c_api::give_json(files, files_json);
  });
}

scoremod_status scoremod_plan_store_prune(uint64_t max_bytes, char** deletion_json, char** message) {
  return delete_files(deletion_json, message, [&] { return scoremod::prune_plan_store(max_bytes); });
}

scoremod_status scoremod_plan_store_remove_damaged(char** deletion_json, char** message) {
  return delete_files(deletion_json, message, scoremod::remove_damaged_from_plan_store);
}

scoremod_status scoremod_plan_store_clear(char** deletion_json, char** message) {
  return delete_files(deletion_json, message, scoremod::clear_plan_store);
}

}  // extern "C"
