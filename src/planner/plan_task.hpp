#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.hpp"
#include "verification/trial.hpp"
#include "verification/verdict.hpp"

namespace scoremod::planner {

/// How far planning goes.
enum class Level : std::uint8_t {
  kStatic,    ///< the candidates, and the reasons against others; needs no device, builds nothing
  kBuilt,     ///< the first that the backends build; for a device elsewhere, with the artifacts to store
  kVerified,  ///< and that was seen to be right on the device that is here
};

struct Request {
  Level level = Level::kVerified;
  /// Null if no device is here and none was named: only facts that hold on every device are known then.
  const backend::Target* target = nullptr;
  /// The backends to ask, all of one memory.
  std::span<const backend::Backend* const> backends;
  /// The order of `backends` decides; otherwise the predicted time does.
  bool in_order = false;
  /// For a device elsewhere: ask about every candidate, not only up to the first that is built.
  bool every_candidate = false;
  /// Measure the candidates that may run on the device, and take the fastest.
  bool autotune = false;
  /// Pass over candidates that have to be built or verified first: the others run at once.
  bool ready_only = false;
  std::size_t max_workspace = 0;  ///< bytes; a candidate that needs more is passed over
  backend::PlanOptions options;
};

/// A candidate as the planner saw it.
struct Considered {
  const backend::Backend* engine = nullptr;
  backend::Candidate candidate;
  bool asked = false;                                 ///< the backend was asked to build it, or had it
  bool chosen = false;                                ///< it runs; at Level::kStatic, it is expected to
  std::shared_ptr<const backend::Artifact> artifact;  ///< where it was built
  std::optional<std::size_t> workspace_bytes;         ///< where it was made ready to run
  std::optional<double> measured_milliseconds;        ///< where autotuning timed it
  std::optional<UnsupportedReason> refusal;           ///< why it was passed over
  std::string engine_words;                           ///< why the backend does not build it
  bool left_for_later = false;                        ///< for Request::ready_only alone
  double build_milliseconds = 0;                      ///< for a device elsewhere
  /// For a device elsewhere: the same candidate of the small problem that will be verified there.
  std::optional<backend::Candidate> trial;
  std::shared_ptr<const backend::Artifact> trial_artifact;
  double trial_build_milliseconds = 0;
};

/// Why a backend has no candidates for a task, or no more than these.
struct EngineReasons {
  const backend::Backend* engine = nullptr;
  std::vector<UnsupportedReason> reasons;
};

/// The answer to a task.
struct TaskAnswer {
  backend::Task task;
  std::vector<Considered> considered;  ///< in the order in which they were, or would be, tried
  std::vector<EngineReasons> reasons;  ///< one for each of the request's backends that offers it, in its order
  backend::ExecutablePlan plan;        ///< empty at Level::kStatic, for a device elsewhere, and without a choice

  const Considered* chosen() const;
  /// Every reason, of backends and of candidates, each once.
  std::vector<UnsupportedReason> all_reasons() const;
};

/// The subject of a verification of the candidate on the target.
verification::Subject subject_of(const Considered& considered, const backend::Target& target);

/// The trial problem's candidate that stands for another: the one with an equal structural key.
std::optional<backend::Candidate> trial_candidate(const Considered& considered, const backend::Task& task,
                                                  const backend::Target& target, verification::Trial& trial);

/// Merges the candidates of the request's backends by predicted time, and takes the first that builds, fits and is
/// right by `trial`, which is of the same problem. Throws Error(kEnvironment) if a build or a device fails for a reason
/// of the machine's.
TaskAnswer plan_task(const compiler::CompiledProblem& problem, const backend::Task& task, const Request& request,
                     verification::Trial& trial);

}  // namespace scoremod::planner
