#include "scoremod/attention_cache.hpp"

#include <charconv>
#include <cstdint>
#include <limits>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "scoremod/context_lost.hpp"
#include "scoremod/error.hpp"

#include "backend/backend.hpp"
#include "base/canonical_bytes.hpp"
#include "base/environment.hpp"
#include "base/fork_mutex.hpp"
#include "base/warning.hpp"
#include "planner/selection.hpp"
#include "plans/erased_plan_cache.hpp"
#include "plans/planned_directions.hpp"
#include "problem/canonical_problem.hpp"
#include "problem/empty_sizes.hpp"
#include "runtime/known_structures.hpp"

namespace scoremod {
namespace {

constexpr std::size_t kDefaultAttentions = 256;

/// Everything in the environment that compiling looks at: a changed variable makes another attention.
constexpr const char* kVariables[] = {"SCOREMOD_BACKENDS",     "SCOREMOD_AUTOTUNE",  "SCOREMOD_MAX_WORKSPACE",
                                      "SCOREMOD_VERIFICATION", "SCOREMOD_NEW_SIZES", "SCOREMOD_THREADS",
                                      "OMP_NUM_THREADS"};

PlanCacheLimits limits_of(std::size_t attentions) { return {attentions, std::numeric_limits<std::size_t>::max()}; }

std::size_t attentions_from_environment() {
  const std::string_view value = environment_variable("SCOREMOD_CACHE_ATTENTIONS");
  if (value.empty()) return kDefaultAttentions;
  std::size_t attentions = 0;
  const auto [rest, error] = std::from_chars(value.data(), value.data() + value.size(), attentions);
  if (error == std::errc() && rest == value.data() + value.size()) return attentions;
  warn("SCOREMOD_CACHE_ATTENTIONS: expected a number of attentions, found '", value, "'; the limit is ",
       kDefaultAttentions);
  return kDefaultAttentions;
}

struct Cache {
  ForkMutex mutex;  ///< guards the limit
  std::size_t limit = attentions_from_environment();
  plans::ErasedPlanCache attentions{"attention", limits_of(limit)};
};

/// Never destroyed: threads may be in calls while the process ends, and libraries that plans belong to may be gone.
Cache& cache() {
  static auto& made = *new Cache;
  return made;
}

/// The device that the options mean, of the memory that they mean; -1 where there is none, which compiling refuses.
std::pair<MemoryKind, int> place_of(const CompileOptions& options) {
  const planner::Selection selection = planner::select(options);
  if (options.device || selection.backends.empty()) return {selection.memory, options.device.value_or(-1)};
  try {
    return {selection.memory, selection.backends.front()->memory().current_device()};
  } catch (const ContextLost&) {
    throw;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kEnvironment) throw;
    return {selection.memory, -1};
  }
}

void write_texts(CanonicalWriter& key, const std::vector<std::string>& texts) {
  key.list(texts.size());
  for (const std::string& text : texts) key.text(text);
}

Bytes key_of(const AttentionProblem& problem, const CompileOptions& options) {
  const auto& [backend, backends, memory, device, threads, max_workspace, autotune, new_sizes, disabled_passes] =
      options;
  // The key has resolved values in place of options that the caller left open.
  const auto& [place_memory, place_device] = place_of(options);
  CanonicalWriter key;
  key.bytes(problem::canonical_bytes(problem)).text(backend);
  write_texts(key, backends);
  key.integer(static_cast<int>(place_memory)).integer(place_device).integer(threads);
  key.boolean(max_workspace.has_value()).integer(static_cast<std::int64_t>(max_workspace.value_or(0)));
  key.boolean(autotune).integer(new_sizes ? static_cast<int>(*new_sizes) : -1);
  write_texts(key, disabled_passes);
  for (const char* name : kVariables) key.text(environment_variable(name));
  return key.written();
}

/// An attention, and the context that its plans are in.
class Cached {
 public:
  Cached(const AttentionProblem& problem, const CompileOptions& options)
      : attention_(Attention::compile(problem, options)), context_(context()) {}

  const Attention& attention() const { return attention_; }
  /// Not after a reset of its device, nor in another context.
  bool serves() const { return context() == context_; }

 private:
  /// The calling thread's, on the attention's device.
  std::uint64_t context() const {
    const backend::MemorySpace& space = backend::find_backend(attention_.backend()).memory();
    const backend::DeviceScope current(space, attention_.device());
    return space.context();
  }

  Attention attention_;
  std::uint64_t context_;
};

}  // namespace

std::shared_ptr<const Attention> cached_attention(const AttentionProblem& problem, const CompileOptions& options) {
  problem::validate_for_calls(problem);
  const Bytes key = key_of(problem, options);
  const auto get = [&] {
    const plans::ErasedPlan found = cache().attentions.get(key, [&] {
      return plans::ErasedPlan{std::make_shared<const Cached>(problem, options), 0, ""};
    });
    return std::static_pointer_cast<const Cached>(found.plan);
  };
  std::shared_ptr<const Cached> found = get();
  if (!found->serves()) {
    cache().attentions.forget(key, found);
    found = get();
  }
  const Attention* const attention = &found->attention();
  return {std::move(found), attention};
}

AttentionCacheStatistics attention_cache_statistics() {
  const PlanCacheStatistics counts = cache().attentions.statistics();
  return {counts.hits, counts.misses, counts.waits, counts.failures, counts.evictions, counts.entries};
}

std::size_t attention_cache_limit() {
  const std::lock_guard lock(cache().mutex);
  return cache().limit;
}

void set_attention_cache_limit(std::size_t attentions) {
  const std::lock_guard lock(cache().mutex);
  cache().limit = attentions;
  cache().attentions.set_limits(limits_of(attentions));
}

void clear_attention_cache() {
  cache().attentions.clear();
  runtime::clear_known_structures();
}

CompileCounts compile_counts() {
  const plans::PlannedDirections planned = plans::planned_directions();
  return {runtime::compiled_structures(), planned.forwards, planned.backwards};
}

}  // namespace scoremod
