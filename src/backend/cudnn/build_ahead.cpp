#include "backend/cudnn/build_ahead.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "backend/cuda/load_stand_in_driver.hpp"
#include "backend/cudnn/candidates.hpp"
#include "backend/cudnn/graph/engine.hpp"
#include "backend/cudnn/graph/library.hpp"
#include "backend/cudnn/graph/plan_key.hpp"
#include "backend/cudnn/graph/refusal.hpp"
#include "backend/cudnn/lowering/fused_gradient.hpp"
#include "backend/cudnn/problem_rules.hpp"
#include "base/fail.hpp"
#include "verification/trial_problem.hpp"

namespace scoremod::backend::cudnn {
namespace {

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

std::string forms_of(const LoweredModifier& modifier) {
  std::string text = concat(modifier.graph.nodes.size(), " modifier nodes");
  const char* separator = ": ";
  for (const std::string& form : modifier.forms) {
    text += separator + form;
    separator = ", ";
  }
  return text;
}

/// The record under which the backend looks for the plan on the device.
void describe(const Candidate& candidate, const DeviceProperties& device, const EnginePlan& plan, AheadPlan& ahead) {
  PlanKey key;
  key.graph = candidate.graph;
  key.device = plan_device(device);
  key.cudnn_version = library().cudnn_version;
  ahead.built = true;
  ahead.workspace_bytes = plan.workspace_bytes();
  ahead.engine = concat("cudnn ", version_text(key.cudnn_version));
  ahead.architecture = architecture_text(key.device);
  ahead.label = plan_label(key.graph);
  ahead.key = canonical_bytes(key);
  ahead.payload = plan.serialize();
  ahead.notes.push_back(forms_of(candidate.modifier));
}

/// The plan of a candidate; a refusal becomes a reason. Throws Error(kEnvironment) when the build fails otherwise.
bool build_candidate(const Candidate& candidate, const DeviceProperties& device, AheadPlan& ahead) {
  const auto start = std::chrono::steady_clock::now();
  const BuildOutcome built = build_plan(candidate.graph, device);
  ahead.milliseconds += milliseconds_since(start);
  if (built.status == BuildStatus::kFailed) fail_environment("cuDNN could not build a plan: ", built.text);
  if (built.status == BuildStatus::kRefused) {
    ahead.reasons.push_back(concat("cuDNN refused the graph: ", short_refusal(built.text)));
    return false;
  }
  describe(candidate, device, *built.plan, ahead);
  return true;
}

/// The plan of the small problem whose run on the device verifies the candidate; nothing where there is none: the
/// device then says why.
void build_trial(const compiler::CompiledProblem& problem, const PlanTask& task, const FormFilter& allowed,
                 std::size_t groups_left_out, const DeviceProperties& device, std::vector<AheadPlan>& plans) {
  const compiler::CompiledProblem trial = verification::trial_problem(problem);
  std::vector<std::string> reasons;
  const auto same = candidate(trial, task, allowed, groups_left_out, reasons);
  AheadPlan ahead;
  ahead.direction = task.direction;
  ahead.trial = true;
  if (same && build_candidate(*same, device, ahead)) plans.push_back(std::move(ahead));
}

void build_task(const compiler::CompiledProblem& problem, const PlanTask& task, const DeviceProperties& device,
                std::vector<AheadPlan>& plans) {
  AheadPlan ahead;
  ahead.direction = task.direction;
  ahead.reasons = problem_objections(problem.problem, device.compute_capability);
  if (task.direction == Direction::kBackward) {
    for (std::string& reason : backward_objections(problem.problem)) ahead.reasons.push_back(std::move(reason));
  }
  const std::string version = version_text(library().cudnn_version);
  const FormTable table = shipped_form_table(device.architecture(), version, row_class(problem.problem));
  if (table.size() == 0) {
    ahead.reasons.push_back(concat("no form is known for cuDNN ", version,
                                   ": expected a cuDNN 9, such as a version that docs/cudnn_forms.md names"));
  }
  if (!ahead.reasons.empty()) return plans.push_back(std::move(ahead));
  // Where cuDNN does not write the gradient of an operand, a pass of scoremod's own does.
  if (task.operand_gradient &&
      !gradient_objection(table, bias_gradient(problem.problem, *task.operand_gradient)).empty()) {
    return;
  }
  const FormFilter allowed = right_forms(table, task.direction);
  const Candidates found = candidates(problem, task, allowed);
  if (found.found.empty()) ahead.reasons = found.reasons;
  const auto built =
      std::ranges::find_if(found.found, [&](const Candidate& next) { return build_candidate(next, device, ahead); });
  if (!ahead.built && task.operand_gradient) return;
  if (task.operand_gradient) {
    const std::string& name = problem.problem.program.operands()[*task.operand_gradient].name;
    ahead.notes.push_back(concat("writes the gradient of '", name, "' too"));
  }
  if (ahead.built && !table.verified()) {
    ahead.notes.push_back(concat("its forms were seen to be right on ", table.seen_on(), " and not on ",
                                 device.architecture(), " with cuDNN ", version,
                                 ": a trial on the device decides whether it is used"));
  }
  plans.push_back(std::move(ahead));
  if (built != found.found.end()) build_trial(problem, task, allowed, built->groups_left_out, device, plans);
}

}  // namespace

std::vector<AheadPlan> build_ahead(const compiler::CompiledProblem& problem, std::string_view device_properties) {
  const DeviceProperties device = DeviceProperties::parse(device_properties);
  cuda::load_stand_in_driver();
  if (!library().available) fail_environment(library().reason);
  std::vector<AheadPlan> plans;
  build_task(problem, Direction::kForward, device, plans);
  if (problem.backward) build_task(problem, Direction::kBackward, device, plans);
  if (const auto operand = fused_gradient_operand(problem)) {
    build_task(problem, {Direction::kBackward, operand}, device, plans);
  }
  return plans;
}

}  // namespace scoremod::backend::cudnn
