#include "runtime/known_structures.hpp"

#include <array>
#include <atomic>
#include <mutex>
#include <utility>

#include "base/canonical_bytes.hpp"
#include "base/fail.hpp"
#include "base/fork_mutex.hpp"
#include "base/timeline.hpp"
#include "plans/erased_plan_cache.hpp"
#include "problem/implied_operands.hpp"
#include "problem/structure_key.hpp"
#include "problem/validate_sizes.hpp"

namespace scoremod::runtime {
namespace {

/// A compiled program takes some ten kB.
constexpr std::size_t kMostStructures = 1024;

std::atomic<std::uint64_t> compiled = 0;

/// Never destroyed: threads may compile while the process ends.
plans::ErasedPlanCache& structures() {
  static auto& made = *new plans::ErasedPlanCache("structure", {kMostStructures, SIZE_MAX});
  return made;
}

/// The structures that were asked for last, found by comparison: a key takes longer than all else about a new size.
class RecentStructures {
 public:
  std::shared_ptr<const KnownStructure> find(const AttentionProblem& problem, const CompileOptions& options) const {
    const std::scoped_lock lock(mutex_);
    for (const Entry& entry : entries_) {
      if (entry.known != nullptr && problem::same_structure(problem, entry.problem) &&
          entry.disabled_passes == options.disabled_passes)
        return entry.known;
    }
    return nullptr;
  }

  /// A count for remember(), which takes nothing in that was asked for before clear().
  std::uint64_t clears() const {
    const std::scoped_lock lock(mutex_);
    return clears_;
  }

  void remember(const AttentionProblem& problem, const CompileOptions& options,
                std::shared_ptr<const KnownStructure> known, std::uint64_t clears) {
    Entry entry{problem, options.disabled_passes, std::move(known)};
    const std::scoped_lock lock(mutex_);
    if (clears != clears_) return;
    std::swap(entries_.at(next_), entry);
    next_ = (next_ + 1) % entries_.size();
  }

  void clear() {
    std::array<Entry, kMost> dropped;
    const std::scoped_lock lock(mutex_);
    entries_.swap(dropped);
    ++clears_;
  }

 private:
  static constexpr std::size_t kMost = 16;
  struct Entry {
    AttentionProblem problem;  ///< a valid one of the structure
    std::vector<std::string> disabled_passes;
    std::shared_ptr<const KnownStructure> known;
  };

  mutable ForkMutex mutex_;
  std::array<Entry, kMost> entries_;
  std::size_t next_ = 0;
  std::uint64_t clears_ = 0;
};

/// Never destroyed, as structures() are not.
RecentStructures& recent() {
  static auto& made = *new RecentStructures;
  return made;
}

Bytes key_of(const AttentionProblem& problem, const CompileOptions& options) {
  CanonicalWriter key;
  key.bytes(problem::structure_key(problem)).list(options.disabled_passes.size());
  for (const std::string& pass : options.disabled_passes) key.text(pass);
  return key.written();
}

}  // namespace

std::shared_ptr<const KnownStructure> known_structure(const AttentionProblem& problem, const CompileOptions& options) {
  if (options.threads < 0) fail_argument("expected 0 threads (one for each core) or more, found ", options.threads);
  if (auto known = recent().find(problem, options)) {
    problem::validate_at_sizes(problem);
    return known;
  }
  const TimedStep step("compile the program");
  validate(problem);
  const std::uint64_t clears = recent().clears();
  const plans::ErasedPlan found = structures().get(key_of(problem, options), [&] {
    ++compiled;
    auto known = std::make_shared<KnownStructure>();
    compiler::PipelineOptions pipeline;
    pipeline.disabled = options.disabled_passes;
    pipeline.on_step = [&](const compiler::StepReport& report) { known->steps.push_back(report); };
    known->compiled = compiler::compile(problem, pipeline);
    known->declared = problem::with_implied_operands(problem).program;
    return plans::ErasedPlan{std::move(known), 0, ""};
  });
  auto known = std::static_pointer_cast<const KnownStructure>(found.plan);
  recent().remember(problem, options, known, clears);
  return known;
}

compiler::CompiledProblem compiled_problem(const AttentionProblem& problem, const CompileOptions& options) {
  return compiler::at_sizes_of(problem, known_structure(problem, options)->compiled);
}

std::uint64_t compiled_structures() { return compiled; }

void clear_known_structures() {
  structures().clear();
  recent().clear();
}

}  // namespace scoremod::runtime
