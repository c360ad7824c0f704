#include "scoremod/compile_ahead.hpp"

#include <utility>

#include "backend/plan_ahead.hpp"
#include "base/fail.hpp"
#include "compiler/pipeline.hpp"
#include "plans/plan_store.hpp"

namespace scoremod {
namespace {

AheadResult keep(backend::AheadPlan plan, plans::PlanStore& store) {
  AheadResult result;
  result.direction = plan.direction == backend::Direction::kForward ? "forward" : "backward";
  result.trial = plan.trial;
  result.reasons = std::move(plan.reasons);
  result.notes = std::move(plan.notes);
  result.label = plan.label;
  result.milliseconds = plan.milliseconds;
  if (!plan.built) return result;
  result.workspace_bytes = plan.workspace_bytes;
  result.plan_bytes = plan.payload.size();
  result.stored = store.save({plans::RecordKind::kPlan, std::move(plan.engine), std::move(plan.architecture),
                              std::move(plan.label), std::move(plan.key), std::move(plan.payload)});
  if (!result.stored) {
    fail_environment("the plan could not be written to ", store.directory().string(),
                     ": the warning above says why; choose another folder");
  }
  return result;
}

}  // namespace

std::vector<AheadResult> compile_ahead(const AttentionProblem& problem, std::string_view device_properties,
                                       const std::string& directory) {
  if (directory.empty()) fail_argument("expected a folder for the plans, found an empty name");
  const compiler::CompiledProblem compiled = compiler::compile(problem, {});
  plans::PlanStore store(directory);
  std::vector<AheadResult> results;
  for (backend::AheadPlan& plan : backend::plan_ahead(compiled, device_properties)) {
    results.push_back(keep(std::move(plan), store));
  }
  return results;
}

std::string device_properties() { return backend::device_properties_here(); }

}  // namespace scoremod
