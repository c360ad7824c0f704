#include "planner/plan_task.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <tuple>
#include <utility>

#include "backend/unsupported.hpp"
#include "base/fail.hpp"
#include "base/timeline.hpp"
#include "planner/artifacts.hpp"
#include "planner/autotune.hpp"
#include "plans/plan_work.hpp"
#include "problem/tensor_view.hpp"
#include "verification/verify_plan.hpp"

namespace scoremod::planner {
namespace {

using backend::Backend;
using backend::Candidate;
using backend::Rule;
using backend::unsupported;
using compiler::CompiledProblem;

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

void add_new(std::vector<UnsupportedReason>& to, const std::vector<UnsupportedReason>& from) {
  for (const UnsupportedReason& reason : from) {
    if (std::ranges::find(to, reason) == to.end()) to.push_back(reason);
  }
}

/// Thrown out of a verification that cannot be made; nothing is remembered of it.
struct NoTrial {
  std::string text;
};

/// The candidate of the same structure for a problem and a task; nothing where the backend has none.
std::optional<Candidate> same_candidate(const Considered& considered, const CompiledProblem& problem,
                                        const backend::Task& task, const backend::Target& target) {
  std::vector<UnsupportedReason> reasons;
  for (Candidate& same : considered.engine->candidates(problem, task, target, reasons)) {
    if (same.structural_key == considered.candidate.structural_key) return std::move(same);
  }
  return std::nullopt;
}

/// One task's planning, from the candidates to the one that runs.
class TaskPlanner {
 public:
  TaskPlanner(const CompiledProblem& problem, const backend::Task& task, const Request& request,
              verification::Trial& trial)
      : problem_(problem), task_(task), request_(request), trial_(trial) {}

  TaskAnswer run() {
    answer_.task = task_;
    gather();
    if (request_.level == Level::kStatic) {
      choose_expected();
    } else if (!request_.target->present) {
      build_elsewhere();
    } else {
      build_here();
    }
    name_direction();
    return std::move(answer_);
  }

 private:
  void gather() {
    const TimedStep step("choose", direction());
    for (const Backend* engine : request_.backends) {
      if (!engine->offers(task_)) continue;
      EngineReasons reasons{engine, engine->objections(problem_, task_, request_.target)};
      if (reasons.reasons.empty() && request_.target != nullptr) {
        auto found = engine->candidates(problem_, task_, *request_.target, reasons.reasons);
        for (Candidate& candidate : found) {
          Considered considered;
          considered.engine = engine;
          considered.candidate = std::move(candidate);
          answer_.considered.push_back(std::move(considered));
        }
      }
      answer_.reasons.push_back(std::move(reasons));
    }
    // Within one backend the fastest comes first, even if the caller orders backends.
    std::ranges::stable_sort(answer_.considered, {}, [&](const Considered& c) {
      const auto place = std::ranges::find(request_.backends, c.engine) - request_.backends.begin();
      return std::tuple(request_.in_order ? place : 0, !request_.in_order && !c.candidate.behind_others.empty(),
                        c.candidate.predicted.milliseconds);
    });
  }

  /// Whether the workspace is within the limit; says so where it isn't.
  bool fits(Considered& considered, std::size_t bytes) {
    if (bytes <= request_.max_workspace) return true;
    std::string remedy;
    if (problem_.problem.deterministic && task_.direction == backend::Direction::kBackward) {
      remedy =
          "leave 'deterministic' out, split the batch or the heads, or raise the limit: deterministic "
          "gradients may take memory for each pair of a query and a key";
    }
    considered.refusal = unsupported(Rule::kWorkspaceLimit,
                                     concat("needs a workspace of ", bytes, " bytes, more than the limit of ",
                                            request_.max_workspace, " (SCOREMOD_MAX_WORKSPACE)"),
                                     std::move(remedy));
    return false;
  }

  void choose_expected() {
    for (Considered& considered : answer_.considered) {
      const auto known = considered.candidate.workspace_bytes;
      if (known && !fits(considered, *known)) continue;
      considered.chosen = true;
      return;
    }
  }

  void build_elsewhere() {
    for (Considered& considered : answer_.considered) {
      const auto known = considered.candidate.workspace_bytes;
      if (known && !fits(considered, *known)) continue;
      considered.asked = true;
      const auto start = std::chrono::steady_clock::now();
      backend::BuildResult built = build_artifact(*considered.engine, considered.candidate, *request_.target);
      considered.build_milliseconds = milliseconds_since(start);
      if (!built.artifact) {
        refuse(considered, built.refusal);
        continue;
      }
      considered.artifact = std::move(built.artifact);
      const auto fits_alone = [&](const Candidate&, const std::shared_ptr<const backend::Artifact>& artifact) {
        return artifact->workspace_bytes() <= request_.max_workspace;
      };
      if (!fits_alone(considered.candidate, considered.artifact))
        take_smaller_engine(considered, build_artifact, fits_alone);
      considered.workspace_bytes = std::max(considered.artifact->workspace_bytes(), known.value_or(0));
      if (answer_.chosen() != nullptr) continue;
      considered.chosen = true;
      if (request_.every_candidate) continue;
      build_trial_elsewhere(considered);
      return;
    }
  }

  /// For an artifact that needs more memory than the limit. The first of the library's next engines whose artifact
  /// `fits` takes its place, if there is one.
  template <class Build, class Fits>
  void take_smaller_engine(Considered& considered, const Build& build, const Fits& fits) const {
    for (const std::string& name : considered.artifact->next_library_engines()) {
      backend::Task task = task_;
      task.library_engine = name;
      std::optional<Candidate> same = same_candidate(considered, problem_, task, *request_.target);
      if (!same) continue;
      backend::BuildResult built = build(*considered.engine, *same, *request_.target);
      if (!built.artifact || !fits(*same, built.artifact)) continue;
      considered.candidate = std::move(*same);
      considered.artifact = std::move(built.artifact);
      return;
    }
  }

  void build_trial_elsewhere(Considered& considered) {
    const Candidate& candidate = considered.candidate;
    if (candidate.structural_key.empty() || candidate.plan_key.empty()) return;
    const auto start = std::chrono::steady_clock::now();
    std::optional<BuiltTrial> trial = built_trial(considered, build_artifact);
    // Without an artifact, the device will say why.
    if (!trial || !trial->built.artifact || trial->candidate.plan_key == candidate.plan_key) return;
    considered.trial_build_milliseconds = milliseconds_since(start);
    considered.trial_artifact = std::move(trial->built.artifact);
    considered.trial = std::move(trial->candidate);
  }

  /// The trial problem's candidate, and what came of building it.
  struct BuiltTrial {
    Candidate candidate;
    backend::BuildResult built;
  };

  /// By the engine of the considered artifact: a library may choose another one by the small problem's sizes.
  template <class Build>
  std::optional<BuiltTrial> built_trial(const Considered& considered, const Build& build) {
    const auto by = [&](const backend::Task& task) -> std::optional<BuiltTrial> {
      std::optional<Candidate> same = trial_candidate(considered, task, *request_.target, trial_);
      if (!same) return std::nullopt;
      const bool is_the_plan = !same->plan_key.empty() && same->plan_key == considered.candidate.plan_key;
      if (is_the_plan) return BuiltTrial{std::move(*same), {considered.artifact, ""}};
      backend::BuildResult built = build(*considered.engine, *same, *request_.target);
      return BuiltTrial{std::move(*same), std::move(built)};
    };
    std::optional<BuiltTrial> chosen = by(task_);
    if (!chosen) return std::nullopt;
    backend::Task task = task_;
    task.library_engine = considered.artifact->library_engine();
    const bool same = chosen->built.artifact && chosen->built.artifact->library_engine() == task.library_engine;
    return same || task.library_engine.empty() ? chosen : by(task);
  }

  void build_here() {
    Autotune autotune(problem_, task_, request_);
    for (Considered& considered : answer_.considered) {
      backend::ExecutablePlan plan;
      if (!make_ready(considered, plan)) continue;
      if (!request_.autotune) return take(considered, std::move(plan));
      autotune.add(considered, std::move(plan));
    }
    if (auto fastest = autotune.fastest()) take(*fastest->first, std::move(fastest->second));
  }

  /// Builds, checks the workspace against the limit, and verifies.
  bool make_ready(Considered& considered, backend::ExecutablePlan& plan) {
    const Candidate& candidate = considered.candidate;
    if (candidate.workspace_bytes && !fits(considered, *candidate.workspace_bytes)) return false;
    const bool builds = !has_artifact(*considered.engine, candidate, *request_.target);
    if (request_.ready_only && builds) return leave_for_later(considered);
    considered.asked = true;
    // The host's part of a trial takes about as long as a build, and needs none.
    const bool begins = builds && needs_trial(considered);
    if (begins) trial_.begin(task_.direction);
    if (candidate.recipe->needs_context()) enter_planning();
    backend::BuildResult built = obtain_artifact(*considered.engine, candidate, *request_.target);
    if (!built.artifact) return refuse(considered, built.refusal);
    considered.artifact = std::move(built.artifact);
    if (needs_trial(considered)) {
      if (request_.ready_only) return leave_for_later(considered);
      if (!begins) trial_.begin(task_.direction);
    }
    enter_planning();
    {
      const TimedStep step("load onto the device", candidate.label);
      plan = candidate.recipe->plan(considered.artifact, request_.options);
    }
    return is_within_limit(considered, plan) && (!is_verified(candidate) || is_right(considered));
  }

  /// Whether the plan's workspace is within the limit, by a smaller engine of the library's if need be.
  bool is_within_limit(Considered& considered, backend::ExecutablePlan& plan) {
    if (plan.workspace_bytes() > request_.max_workspace) {
      // It may have to be built.
      if (request_.ready_only && !considered.artifact->next_library_engines().empty())
        return leave_for_later(considered);
      take_smaller_engine(considered, obtain_artifact, [&](const Candidate& same, const auto& artifact) {
        backend::ExecutablePlan smaller = same.recipe->plan(artifact, request_.options);
        if (smaller.workspace_bytes() > request_.max_workspace) return false;
        plan = std::move(smaller);
        return true;
      });
    }
    considered.workspace_bytes = plan.workspace_bytes();
    return fits(considered, plan.workspace_bytes());
  }

  /// Until the task is planned. Not before the device is wanted, whose context may still be in the making.
  void enter_planning() {
    if (!planning_) planning_ = memory().enter_planning();
  }

  /// Before the artifact is there, an engine of a library's is not known: then a verdict of any one counts.
  bool needs_trial(const Considered& considered) const {
    return is_verified(considered.candidate) && verification::needs_trial(subject_of(considered, *request_.target));
  }

  static bool leave_for_later(Considered& considered) {
    considered.left_for_later = true;
    considered.refusal =
        unsupported(Rule::kEngineRefused, "its plan has to be built or verified first, and another plan is ready");
    return false;
  }

  bool is_verified(const Candidate& candidate) const {
    return request_.level == Level::kVerified && !candidate.structural_key.empty();
  }

  bool is_right(Considered& considered) {
    try {
      const verification::Verdict verdict =
          verification::verify(subject_of(considered, *request_.target), [&] { return run_trial(considered); });
      if (!verdict.right) considered.refusal = unsupported(Rule::kWrongResult, verdict.reason);
      return verdict.right;
    } catch (const NoTrial& none) {
      considered.refusal = unsupported(Rule::kNoTrial, none.text);
      return false;
    }
  }

  verification::Verdict run_trial(const Considered& considered) {
    const TimedStep step("trial", considered.candidate.label);
    const bool shows = problem_.forward.mask.kind == masks::MaskKind::kEmpty || trial_.keeps_keys();
    if (!shows && considered.engine->runs_only_shown())
      throw NoTrial{"no row of the small problem to be verified keeps a key, so that a trial would show nothing"};
    const std::optional<BuiltTrial> trial = built_trial(considered, obtain_artifact);
    if (!trial) throw NoTrial{"the small problem to be verified has no candidate of the same structure"};
    const std::shared_ptr<const backend::Artifact>& artifact = trial->built.artifact;
    if (!artifact)
      throw NoTrial{concat("the backend refused the small problem to be verified: ", trial->built.refusal)};
    const backend::Recipe& recipe = *trial->candidate.recipe;
    verification::Verdict verdict = verdict_on(*considered.engine, recipe.plan(artifact, request_.options));
    if (verdict.right) {
      if (const auto few = recipe.plan_on_few_blocks(*artifact)) {
        verdict = verdict_on(*considered.engine, *few);
        if (!verdict.right) verdict.reason += " (by few blocks, each with much of the small problem)";
      }
    }
    verdict.shown = shows;
    return verdict;
  }

  verification::Verdict verdict_on(const backend::Backend& engine, const backend::ExecutablePlan& plan) {
    const verification::OperationErrors errors{engine.function_error(), engine.product_error(),
                                               engine.forward_rounding(trial_.problem())};
    const auto outputs = plan.forward ? verification::verify_forward(trial_, *plan.forward, memory(), errors)
                                      : verification::verify_backward(trial_, *plan.backward, memory(),
                                                                      task_.operand_gradients, task_.attention, errors);
    return verification::verdict_of(outputs, task_.direction);
  }

  static bool refuse(Considered& considered, const std::string& words) {
    considered.engine_words = words;
    considered.refusal = unsupported(Rule::kEngineRefused, concat(considered.engine->name(), " refused it: ", words));
    return false;
  }

  void take(Considered& considered, backend::ExecutablePlan plan) {
    considered.chosen = true;
    answer_.plan = std::move(plan);
  }

  const backend::MemorySpace& memory() const { return request_.backends.front()->memory(); }
  const char* direction() const { return task_.direction == backend::Direction::kForward ? "forward" : "backward"; }

  void name_direction() {
    for (EngineReasons& engine : answer_.reasons) {
      for (UnsupportedReason& reason : engine.reasons) {
        if (reason.direction.empty()) reason.direction = direction();
      }
    }
    for (Considered& considered : answer_.considered) {
      if (considered.refusal) considered.refusal->direction = direction();
    }
  }

  const CompiledProblem& problem_;
  const backend::Task& task_;
  const Request& request_;
  verification::Trial& trial_;
  TaskAnswer answer_;
  std::unique_ptr<backend::PlanningScope> planning_;
};

}  // namespace

const Considered* TaskAnswer::chosen() const {
  const auto found = std::ranges::find_if(considered, &Considered::chosen);
  return found == considered.end() ? nullptr : &*found;
}

std::vector<UnsupportedReason> TaskAnswer::all_reasons() const {
  std::vector<UnsupportedReason> all;
  for (const Considered& candidate : considered) {
    if (candidate.refusal) add_new(all, {*candidate.refusal});
  }
  for (const EngineReasons& engine : reasons) add_new(all, engine.reasons);
  return all;
}

verification::Subject subject_of(const Considered& considered, const backend::Target& target) {
  const Candidate& candidate = considered.candidate;
  verification::Subject subject{candidate.structural_key,
                                considered.artifact ? considered.artifact->library_engine() : std::string(),
                                considered.engine->engine_text(),
                                target.device.label(),
                                concat("trial of ", candidate.label),
                                {}};
  const auto& known = candidate.known_right;
  const bool is_known = known && (subject.library_engine.empty() || subject.library_engine == *known);
  subject.shipped_right = [is_known] { return is_known; };
  return subject;
}

std::optional<Candidate> trial_candidate(const Considered& considered, const backend::Task& task,
                                         const backend::Target& target, verification::Trial& trial) {
  return same_candidate(considered, trial.problem(), task, target);
}

TaskAnswer plan_task(const CompiledProblem& problem, const backend::Task& task, const Request& request,
                     verification::Trial& trial) {
  if (request.level != Level::kStatic && request.target == nullptr) fail_bug("a plan was asked for without a device");
  return TaskPlanner(problem, task, request, trial).run();
}

}  // namespace scoremod::planner
