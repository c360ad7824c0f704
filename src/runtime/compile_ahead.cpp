#include "scoremod/compile_ahead.hpp"

#include <algorithm>
#include <utility>

#include "backend/backend.hpp"
#include "base/fail.hpp"
#include "compiler/pipeline.hpp"
#include "planner/artifacts.hpp"
#include "planner/plan_problem.hpp"
#include "plans/plan_store.hpp"

namespace scoremod {
namespace {

/// Adds a plan's record to the store.
void keep(const backend::Backend& engine, const backend::Candidate& candidate, const backend::Artifact& artifact,
          const backend::Target& target, plans::PlanStore& store, AheadResult& result) {
  result.label = candidate.label;
  result.plan_bytes = artifact.serialize().size();
  result.workspace_bytes = std::max(artifact.workspace_bytes(), candidate.workspace_bytes.value_or(0));
  result.stored = planner::store_artifact(engine, candidate, artifact, target, store);
  if (!result.stored) {
    fail_environment("the plan could not be written to ", store.directory().string(),
                     ": the warning above says why; choose another folder");
  }
}

/// The results of one task: its plan, and the one whose run on the device will verify it.
void add_results(const planner::TaskAnswer& answer, const backend::Target& target, plans::PlanStore& store,
                 std::vector<AheadResult>& results) {
  AheadResult result;
  result.direction = answer.task.direction == backend::Direction::kForward ? "forward" : "backward";
  for (const UnsupportedReason& reason : answer.all_reasons()) result.reasons.push_back(to_string(reason));
  for (const planner::Considered& considered : answer.considered) {
    result.milliseconds += considered.build_milliseconds;
    if (!considered.engine_words.empty())
      planner::store_refusal(*considered.engine, considered.candidate, considered.engine_words, target, store);
  }
  const planner::Considered* chosen = answer.chosen();
  if (chosen == nullptr) {
    results.push_back(std::move(result));
    return;
  }
  result.backend = chosen->engine->name();
  if (chosen->candidate.plan_key.empty()) return;  // nothing to keep
  result.notes = chosen->candidate.notes;
  keep(*chosen->engine, chosen->candidate, *chosen->artifact, target, store, result);
  results.push_back(std::move(result));
  if (!chosen->trial) return;
  AheadResult trial;
  trial.direction = results.back().direction;
  trial.backend = chosen->engine->name();
  trial.trial = true;
  trial.milliseconds = chosen->trial_build_milliseconds;
  trial.notes = chosen->trial->notes;
  keep(*chosen->engine, *chosen->trial, *chosen->trial_artifact, target, store, trial);
  results.push_back(std::move(trial));
}

}  // namespace

std::vector<AheadResult> compile_ahead(const AttentionProblem& problem, std::string_view device_properties,
                                       const std::string& directory, const CompileOptions& options) {
  if (directory.empty()) fail_argument("expected a folder for the plans, found an empty name");
  const compiler::CompiledProblem compiled = compiler::compile(problem, {});
  plans::PlanStore store(directory);
  CompileOptions for_device = options;
  if (for_device.backend.empty() && !for_device.memory) for_device.memory = MemoryKind::kCuda;
  const planner::PlannedProblem planned =
      planner::plan_problem_elsewhere(compiled, for_device, planner::Level::kBuilt, planner::select(for_device),
                                      backend::DeviceProperties::parse(device_properties));
  if (planned.selection.backends.empty()) {
    fail_unsupported("this scoremod was built without a backend that plans ahead");
  }
  const planner::Prepared& prepared = planned.prepared;
  std::vector<AheadResult> results;
  add_results(prepared.forward, *planned.target, store, results);
  for (const auto* answer : {&prepared.backward, &prepared.fused_backward, &prepared.operand_gradients}) {
    if (*answer) add_results(**answer, *planned.target, store, results);
  }
  if (results.empty()) {
    fail_argument("expected a backend whose plans are kept, such as cudnn or kernels, found ",
                  prepared.forward.chosen()->engine->name(), ", which builds none; choose another one");
  }
  return results;
}

std::string device_properties() {
  for (const backend::Backend* engine : backend::backends()) {
    std::string text = engine->device_properties_here();
    if (!text.empty()) return text;
  }
  fail_unsupported("this scoremod was built without a backend of a device");
}

}  // namespace scoremod
