#include "planner/artifacts.hpp"

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "scoremod/error.hpp"

#include "base/canonical_bytes.hpp"
#include "base/fork_mutex.hpp"
#include "base/timeline.hpp"
#include "plans/plan_cache.hpp"
#include "plans/plan_store.hpp"
#include "plans/plan_work.hpp"

namespace scoremod::planner {
namespace {

using backend::Artifact;
using ArtifactCache = plans::PlanCache<Artifact>;

/// One for each backend, so that the limits hold for each. Never destroyed: at the end of the process the libraries
/// that plans belong to may be gone before them.
ArtifactCache& cache_of(const backend::Backend& engine) {
  static auto& mutex = *new ForkMutex;
  static auto& caches = *new std::map<std::string, std::unique_ptr<ArtifactCache>>;
  const std::scoped_lock lock(mutex);
  std::unique_ptr<ArtifactCache>& cache = caches[engine.name()];
  if (!cache) cache = std::make_unique<ArtifactCache>(engine.name());
  return *cache;
}

/// Refusals of backends, by plan key. Devices of one kind may share the work of one program and must have the same
/// plans: a refusal for one holds for the others.
class Refusals {
 public:
  std::optional<std::string> of(const std::string& engine, const Bytes& plan_key) const {
    const std::scoped_lock lock(mutex_);
    const auto found = all_.find({engine, plan_key});
    return found == all_.end() ? std::nullopt : std::optional(found->second);
  }
  /// Forgets the oldest beyond kMostBytes: the store has those that follow from their key, and others are found again.
  void add(const std::string& engine, const Bytes& plan_key, const std::string& words) {
    const std::scoped_lock lock(mutex_);
    const auto [place, is_new] = all_.try_emplace({engine, plan_key}, words);
    if (!is_new) return;
    oldest_first_.push_back(place);
    bytes_ += bytes_of(*place);
    while (bytes_ > kMostBytes) {
      bytes_ -= bytes_of(*oldest_first_.front());
      all_.erase(oldest_first_.front());
      oldest_first_.pop_front();
    }
  }

 private:
  static constexpr std::size_t kMostBytes = std::size_t{8} << 20;
  using All = std::map<std::pair<std::string, Bytes>, std::string>;

  static std::size_t bytes_of(const All::value_type& refusal) {
    return refusal.first.second.size() + refusal.second.size();
  }

  mutable ForkMutex mutex_;
  All all_;
  std::deque<All::iterator> oldest_first_;
  std::size_t bytes_ = 0;
};

/// Never destroyed: threads may plan while the process ends.
Refusals& refusals() {
  static auto& made = *new Refusals;
  return made;
}

/// From this process's memory, or from the store.
std::optional<std::string> known_refusal(const backend::Backend& engine, const backend::Candidate& candidate) {
  if (auto words = refusals().of(engine.name(), candidate.plan_key)) return words;
  const std::shared_ptr<plans::PlanStore> store = plans::plan_store();
  constexpr auto kKind = plans::RecordKind::kRefusal;
  // Most candidates are not refused: a file that is not there is no miss.
  if (candidate.refusal_key.empty() || !store->is_on() || !store->has(kKind, candidate.refusal_key)) return {};
  const std::optional<Bytes> stored = store->load(kKind, candidate.refusal_key);
  if (!stored || stored->empty()) return {};
  std::string words(reinterpret_cast<const char*>(stored->data()), stored->size());
  refusals().add(engine.name(), candidate.plan_key, words);
  return words;
}

/// An artifact that needs a context stays on its device and in that context.
Bytes loaded_key(const backend::Candidate& candidate, const backend::Target& target) {
  CanonicalWriter out;
  out.bytes(candidate.plan_key.bytes());
  if (candidate.recipe->needs_context())
    out.integer(target.ordinal).integer(static_cast<std::int64_t>(target.context.id()));
  return out.written();
}

plans::PlanOrRefusal<Artifact> kept(std::shared_ptr<const Artifact> artifact) {
  const std::size_t bytes = artifact->serialize().size();
  return {std::move(artifact), bytes, {}};
}

plans::PlanOrRefusal<Artifact> load_or_build(const backend::Backend& engine, const backend::Candidate& candidate,
                                             const backend::Target& target) {
  const std::shared_ptr<plans::PlanStore> store = plans::plan_store();
  const TimedStep step("load or build", candidate.label);
  plans::CountedWork load(plans::WorkKind::kLoad);
  if (const auto stored = store->load(plans::RecordKind::kPlan, candidate.plan_key)) {
    try {
      return kept(candidate.recipe->load(*stored, target));
    } catch (const Error&) {
      store->forget(plans::RecordKind::kPlan, candidate.plan_key);
    }
  }
  load.forget();
  backend::BuildResult built = build_artifact(engine, candidate, target);
  if (!built.artifact) {
    const std::size_t size = built.refusal.size();
    return {nullptr, size, std::move(built.refusal)};
  }
  store_artifact(engine, candidate, *built.artifact, target, *store);
  return kept(std::move(built.artifact));
}

}  // namespace

backend::BuildResult obtain_artifact(const backend::Backend& engine, const backend::Candidate& candidate,
                                     const backend::Target& target) {
  if (candidate.plan_key.empty()) return candidate.recipe->build(target);
  auto entry =
      cache_of(engine).get(loaded_key(candidate, target), [&] { return load_or_build(engine, candidate, target); });
  return {std::move(entry.plan), std::move(entry.refusal)};
}

backend::BuildResult build_artifact(const backend::Backend& engine, const backend::Candidate& candidate,
                                    const backend::Target& target) {
  if (candidate.plan_key.empty()) return candidate.recipe->build(target);
  if (std::optional<std::string> words = known_refusal(engine, candidate)) return {nullptr, std::move(*words)};
  const plans::CountedWork build(plans::WorkKind::kBuild);
  const TimedStep step("build", candidate.label);
  backend::BuildResult built = candidate.recipe->build(target);
  if (!built.artifact) {
    refusals().add(engine.name(), candidate.plan_key, built.refusal);
    store_refusal(engine, candidate, built.refusal, target, *plans::plan_store());
  }
  return built;
}

bool has_artifact(const backend::Backend& engine, const backend::Candidate& candidate, const backend::Target& target) {
  // An artifact without a key costs nothing to build.
  return candidate.plan_key.empty() || cache_of(engine).has(loaded_key(candidate, target)) ||
         plans::plan_store()->has(plans::RecordKind::kPlan, candidate.plan_key);
}

bool store_artifact(const backend::Backend& engine, const backend::Candidate& candidate, const Artifact& artifact,
                    const backend::Target& target, plans::PlanStore& store) {
  return store.save({plans::RecordKind::kPlan, engine.engine_text(), target.device.label(), candidate.label,
                     candidate.plan_key, artifact.serialize()});
}

bool store_refusal(const backend::Backend& engine, const backend::Candidate& candidate, const std::string& words,
                   const backend::Target& target, plans::PlanStore& store) {
  if (candidate.refusal_key.empty()) return false;
  const auto bytes = std::as_bytes(std::span(words));
  return store.save({plans::RecordKind::kRefusal,
                     engine.engine_text(),
                     target.device.label(),
                     candidate.label,
                     candidate.refusal_key,
                     {bytes.begin(), bytes.end()}});
}

}  // namespace scoremod::planner
