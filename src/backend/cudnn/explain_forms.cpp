#include "backend/cudnn/explain_forms.hpp"

#include <algorithm>
#include <utility>

#include "backend/cuda/load_stand_in_driver.hpp"
#include "backend/cudnn/candidates.hpp"
#include "backend/cudnn/graph/device_target.hpp"
#include "backend/cudnn/graph/engine.hpp"
#include "backend/cudnn/graph/library.hpp"
#include "backend/cudnn/graph/refusal.hpp"
#include "backend/cudnn/planner.hpp"
#include "backend/cudnn/problem_rules.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::cudnn {
namespace {

/// The form that the explorer gives attention without a modifier.
constexpr std::string_view kPlain = "plain";

std::optional<double> timed(const FormTable& table, std::string_view form, Direction direction) {
  const double milliseconds = table.milliseconds(form, direction);
  return milliseconds > 0 ? std::optional(milliseconds) : std::nullopt;
}

FormCandidate describe(const Candidate& candidate, const FormTable& table, Direction direction) {
  FormCandidate described;
  for (const std::string& form : candidate.modifier.forms) {
    described.forms.push_back({form, timed(table, form, direction)});
  }
  described.nodes = candidate.modifier.graph.nodes.size();
  described.computed_operands = candidate.modifier.computed.size();
  return described;
}

/// Asks cuDNN to build a candidate for a device that need not be here.
void ask(const Candidate& candidate, const DeviceProperties& device, FormCandidate& described) {
  const BuildOutcome built = build_plan(candidate.graph, device);
  described.asked = true;
  if (built.status == BuildStatus::kBuilt) described.workspace_bytes = built.plan->workspace_bytes();
  if (built.status == BuildStatus::kRefused) described.refusal = concat("cuDNN refused: ", short_refusal(built.text));
  if (built.status == BuildStatus::kFailed) described.refusal = concat("cuDNN failed: ", built.text);
}

/// What speaks for a direction whatever device it is for.
struct Choices {
  DirectionForms forms;
  std::vector<Candidate> candidates;
};

Choices choices_for(const compiler::CompiledProblem& problem, Direction direction, const FormTable& table,
                    int compute_capability) {
  Choices choices;
  DirectionForms& forms = choices.forms;
  forms.direction = direction;
  forms.architecture = architecture_name(compute_capability);
  forms.verified = table.verified();
  forms.seen_on = table.seen_on();
  forms.plain_milliseconds = timed(table, kPlain, direction);
  forms.reasons = problem_objections(problem.problem, compute_capability);
  if (direction == Direction::kBackward) {
    for (std::string& reason : backward_objections(problem.problem)) forms.reasons.push_back(std::move(reason));
  }
  if (table.size() == 0) forms.reasons.push_back("no form is known for this version of cuDNN: expected a cuDNN 9");
  if (!forms.reasons.empty()) return choices;
  Candidates found = candidates(problem, direction, right_forms(table, direction));
  forms.reasons = std::move(found.reasons);
  choices.candidates = std::move(found.found);
  for (const Candidate& candidate : choices.candidates) {
    forms.candidates.push_back(describe(candidate, table, direction));
  }
  return choices;
}

DirectionForms elsewhere(const compiler::CompiledProblem& problem, Direction direction,
                         const DeviceProperties& device) {
  const std::string version = version_text(library().cudnn_version);
  const FormTable table = shipped_form_table(device.architecture(), version, row_class(problem.problem));
  Choices choices = choices_for(problem, direction, table, device.compute_capability);
  for (std::size_t i = 0; i < choices.candidates.size(); ++i) {
    ask(choices.candidates[i], device, choices.forms.candidates[i]);
  }
  const auto runs = [](const FormCandidate& candidate) { return candidate.refusal.empty(); };
  const auto first = std::ranges::find_if(choices.forms.candidates, runs);
  if (first != choices.forms.candidates.end()) first->chosen = true;
  return std::move(choices.forms);
}

DirectionForms here(const compiler::CompiledProblem& problem, Direction direction) {
  const DeviceTarget& target = current_target();
  const FormTable& table = target.forms(row_class(problem.problem));
  Choices choices = choices_for(problem, direction, table, target.device.compute_capability);
  if (choices.candidates.empty()) return std::move(choices.forms);
  const DirectionAnswer answer = plan_direction(problem, direction);
  for (std::size_t i = 0; i < choices.candidates.size(); ++i) {
    FormCandidate& described = choices.forms.candidates[i];
    if (!answer.plan || choices.candidates[i].modifier.graph != answer.plan->modifier().graph) continue;
    described.chosen = described.asked = true;
    described.workspace_bytes = answer.plan->workspace_bytes();
  }
  const std::vector<std::string>& passed_over = answer.plan ? answer.notes : answer.reasons;
  choices.forms.reasons.insert(choices.forms.reasons.end(), passed_over.begin(), passed_over.end());
  return std::move(choices.forms);
}

}  // namespace

std::vector<DirectionForms> explain_forms(const compiler::CompiledProblem& problem,
                                          const std::optional<std::string>& device_properties) {
  std::vector<Direction> directions{Direction::kForward};
  if (problem.backward) directions.push_back(Direction::kBackward);
  std::vector<DirectionForms> all;
  if (!device_properties) {
    for (const Direction direction : directions) all.push_back(here(problem, direction));
    return all;
  }
  const DeviceProperties device = DeviceProperties::parse(*device_properties);
  cuda::load_stand_in_driver();
  if (!library().available) fail_environment(library().reason);
  for (const Direction direction : directions) all.push_back(elsewhere(problem, direction, device));
  return all;
}

}  // namespace scoremod::backend::cudnn
