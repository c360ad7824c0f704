#include "backend/cudnn/planner.hpp"

#include <algorithm>
#include <string_view>

#include "backend/cuda/context.hpp"
#include "backend/cuda/runtime_call.hpp"
#include "backend/cudnn/candidates.hpp"
#include "backend/cudnn/graph/device_target.hpp"
#include "backend/cudnn/graph/handle.hpp"
#include "backend/cudnn/graph/library.hpp"
#include "backend/cudnn/graph/refusal.hpp"
#include "backend/cudnn/problem_rules.hpp"
#include "backend/cudnn/verification.hpp"
#include "base/fail.hpp"
#include "plans/plan_cache.hpp"
#include "plans/plan_store.hpp"
#include "plans/plan_work.hpp"

namespace scoremod::backend::cudnn {
namespace {

/// Thrown where one candidate cannot be, and the next is tried.
struct NoCandidate {
  std::string reason;
};

plans::PlanCache<EnginePlan>& engine_cache() {
  // Never destroyed: at the end of the process cuDNN may be gone before its plans.
  static auto& cache = *new plans::PlanCache<EnginePlan>("cudnn");
  return cache;
}

plans::PlanOrRefusal<EnginePlan> kept(std::shared_ptr<const EnginePlan> plan) {
  const std::size_t bytes = plan->serialize().size();
  return {std::move(plan), bytes, {}};
}

/// From the store, or built and stored.
plans::PlanOrRefusal<EnginePlan> load_or_build(const PlanKey& key, const DeviceTarget& target) {
  const std::shared_ptr<plans::PlanStore> store = plans::plan_store();
  const Bytes bytes = canonical_bytes(key);
  plans::CountedWork load(plans::WorkKind::kLoad);
  if (const auto stored = store->load(plans::RecordKind::kPlan, bytes)) {
    try {
      return kept(load_plan(*stored, builder_handle()));
    } catch (const Error&) {
      store->forget(plans::RecordKind::kPlan, bytes);
    }
  }
  load.forget();
  const plans::CountedWork build(plans::WorkKind::kBuild);
  BuildOutcome built = build_plan(key.graph, builder_handle());
  if (built.status == BuildStatus::kRefused) {
    std::string refusal = short_refusal(built.text);
    const std::size_t size = refusal.size();
    return {nullptr, size, std::move(refusal)};
  }
  if (built.status == BuildStatus::kFailed) fail_environment("cuDNN could not build a plan: ", built.text);
  store->save({plans::RecordKind::kPlan, "cudnn " + target.cudnn_version, architecture_text(target.device),
               plan_label(key.graph), bytes, built.plan->serialize()});
  return kept(std::move(built.plan));
}

std::shared_ptr<const EnginePlan> engine_for(AttentionGraph graph, const DeviceTarget& target) {
  LoadedPlanKey key;
  key.plan.graph = std::move(graph);
  key.plan.device = target.device;
  key.plan.cudnn_version = library().cudnn_version;
  key.device_ordinal = target.ordinal;
  key.context = cuda::current_context();
  const auto entry = engine_cache().get(canonical_bytes(key), [&] { return load_or_build(key.plan, target); });
  if (!entry.plan) throw NoCandidate{concat("cuDNN refused the graph: ", entry.refusal)};
  return entry.plan;
}

std::unique_ptr<const DirectionPlan> make_plan(const compiler::CompiledProblem& problem, const PlanTask& task,
                                               Candidate candidate, const DeviceTarget& target) {
  auto engine = engine_for(std::move(candidate.graph), target);
  return std::make_unique<const DirectionPlan>(problem, task.direction, std::move(candidate.modifier),
                                               std::move(engine));
}

/// The same candidate's plan of a trial problem.
std::unique_ptr<const DirectionPlan> make_trial_plan(const compiler::CompiledProblem& trial, const PlanTask& task,
                                                     const FormFilter& allowed, std::size_t groups_left_out,
                                                     const DeviceTarget& target) {
  std::vector<std::string> reasons;
  std::optional<Candidate> same = candidate(trial, task, allowed, groups_left_out, reasons);
  if (!same) throw NoCandidate{concat("the trial problem has no lowering: ", reasons.empty() ? "" : reasons[0])};
  return make_plan(trial, task, std::move(*same), target);
}

/// Why no lowering may be used here, whatever the problem.
std::string objection(const FormTable& table, const DeviceTarget& target) {
  if (table.size() == 0) {
    return concat("no form is known for cuDNN ", target.cudnn_version, ": expected a cuDNN 9, such as a version that ",
                  "docs/cudnn_forms.md names");
  }
  if (!table.verified() && verification::verification_mode() == verification::Mode::kNever) {
    return concat("the forms were seen to be right on ", table.seen_on(), ", and not on ", target.architecture,
                  " with cuDNN ", target.cudnn_version,
                  "; SCOREMOD_VERIFICATION=never forbids the trial that would show what they compute");
  }
  return {};
}

std::string describe(const DirectionPlan& plan) {
  std::string text = concat(plan.modifier().graph.nodes.size(), " modifier nodes");
  for (const std::string& form : plan.modifier().forms) text += concat(text.ends_with("nodes") ? ": " : ", ", form);
  text += concat("; workspace ", plan.workspace_bytes(), " bytes");
  if (const std::size_t bytes = plan.computed_bytes(); bytes > 0) {
    text += concat("; ", plan.modifier().computed.size(),
                   " score-free parts are computed beforehand by a kernel of scoremod's, into ", bytes,
                   " bytes of the workspace");
  }
  return text;
}

}  // namespace

DirectionAnswer plan_direction(const compiler::CompiledProblem& problem, const PlanTask& task,
                               const PlannerOptions& options) {
  if (task.direction == Direction::kBackward && !options.allowed) {
    if (std::vector<std::string> reasons = backward_objections(problem.problem); !reasons.empty()) {
      return {{}, std::move(reasons), {}};
    }
  }
  const DeviceTarget& target = current_target();
  // Plans are loaded and tried on streams that nobody captures, while other threads may capture theirs.
  const cuda::RelaxedCapture relaxed;
  const FormTable& table = target.forms(row_class(problem.problem));
  if (std::string reason = objection(table, target); !reason.empty() && !options.allowed) return {{}, {reason}, {}};
  const FormFilter allowed = options.allowed ? options.allowed : right_forms(table, task.direction);
  Candidates found = candidates(problem, task, allowed);
  DirectionAnswer answer;
  for (Candidate& next : found.found) {
    const std::size_t groups = next.groups_left_out;
    try {
      auto plan = make_plan(problem, task, std::move(next), target);
      const verification::Verdict verdict =
          verify_lowering(problem, task, plan->modifier(), target, [&](const compiler::CompiledProblem& trial) {
            return make_trial_plan(trial, task, allowed, groups, target);
          });
      if (!verdict.right) throw NoCandidate{verdict.reason};
      answer.plan = std::move(plan);
      answer.notes = std::move(answer.reasons);
      answer.reasons.clear();
      answer.notes.push_back(describe(*answer.plan));
      if (!table.verified()) {
        answer.notes.push_back(
            concat("its forms were seen to be right on ", table.seen_on(), ": a trial on this device admitted it"));
      }
      return answer;
    } catch (const NoCandidate& none) {
      if (std::ranges::find(answer.reasons, none.reason) == answer.reasons.end()) answer.reasons.push_back(none.reason);
    }
  }
  if (answer.reasons.empty()) answer.reasons = std::move(found.reasons);
  return answer;
}

}  // namespace scoremod::backend::cudnn
