#include "explain/task_candidates.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/fail.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::explaining {
namespace {

using planner::Considered;
using planner::TaskAnswer;

const char* name_of(backend::Direction direction) {
  return direction == backend::Direction::kForward ? "forward" : "backward";
}

PatternCandidateExplanation explain_candidate(const Considered& considered) {
  PatternCandidateExplanation explanation;
  const backend::Candidate& candidate = considered.candidate;
  explanation.backend = considered.engine->name();
  for (const backend::CandidatePart& part : candidate.parts)
    explanation.patterns.push_back({part.name, part.milliseconds});
  explanation.nodes = candidate.nodes;
  explanation.computed_operands = candidate.computed_operands;
  explanation.predicted_milliseconds = candidate.predicted.milliseconds;
  explanation.prediction_source = candidate.predicted.source;
  explanation.measured_milliseconds = considered.measured_milliseconds;
  explanation.chosen = considered.chosen;
  explanation.asked = considered.asked;
  explanation.workspace_bytes = considered.workspace_bytes;
  if (considered.refusal) explanation.refusal = to_string(*considered.refusal);
  return explanation;
}

/// The gradients that a backward's plan writes, by the names of a call's tensors.
std::vector<std::string> gradients_of(const TaskAnswer& answer, const AttentionProblem& problem) {
  if (answer.task.direction == backend::Direction::kForward) return {};
  std::vector<std::string> names;
  if (answer.task.attention) names = {"dq", "dk", "dv"};
  const Considered* chosen = answer.chosen();
  const bool writes_any = chosen != nullptr && chosen->candidate.any_operand_gradients;
  for (const std::uint32_t i : writes_any ? problem::operands_with_gradient(problem) : answer.task.operand_gradients)
    names.push_back(concat("d_", problem.program.operands()[i].name));
  return names;
}

PatternExplanation explain_task(const TaskAnswer& answer, const planner::PlannedProblem& planned,
                                const AttentionProblem& problem) {
  PatternExplanation explanation;
  explanation.direction = name_of(answer.task.direction);
  explanation.gradients = gradients_of(answer, problem);
  explanation.memory = planned.selection.memory;
  if (explanation.memory != MemoryKind::kHost) explanation.architecture = planned.target->device.architecture();
  explanation.verified = true;
  for (const Considered& considered : answer.considered) {
    if (!considered.candidate.parts_seen_on.empty()) {
      explanation.verified = false;
      explanation.seen_on = considered.candidate.parts_seen_on;
    }
    if (considered.candidate.base_milliseconds) explanation.plain_milliseconds = considered.candidate.base_milliseconds;
    explanation.candidates.push_back(explain_candidate(considered));
  }
  for (const planner::EngineReasons& engine : answer.reasons) {
    for (const UnsupportedReason& reason : engine.reasons)
      explanation.reasons.push_back(concat(engine.engine->name(), ": ", to_string(reason)));
  }
  return explanation;
}

/// Why the candidate that runs was preferred to this one.
std::string decision(const Considered& considered, const Considered& chosen, const planner::Selection& selection) {
  if (considered.refusal) return concat("refused: ", considered.refusal->text);
  const char* other = chosen.engine->name();
  if (considered.measured_milliseconds && chosen.measured_milliseconds) {
    return concat("measured to take ", *considered.measured_milliseconds, " ms, and ", other, " ",
                  *chosen.measured_milliseconds, " ms");
  }
  if (selection.in_order) return concat("after ", other, " in the order of ", selection.decided_by);
  if (!considered.candidate.behind_others.empty())
    return concat("after ", other, ": ", considered.candidate.behind_others);
  return concat("predicted to take ", considered.candidate.predicted.milliseconds, " ms, and ", other, " ",
                chosen.candidate.predicted.milliseconds, " ms");
}

/// The candidate that a backend would have run.
const Considered* best_of(const backend::Backend& engine, const TaskAnswer& answer) {
  const Considered* best = nullptr;
  const auto rank = [](const Considered& considered) {
    const double unmeasured = std::numeric_limits<double>::infinity();
    return std::pair(considered.refusal.has_value(), considered.measured_milliseconds.value_or(unmeasured));
  };
  for (const Considered& considered : answer.considered) {
    if (considered.engine == &engine && (best == nullptr || rank(considered) < rank(*best))) best = &considered;
  }
  return best;
}

/// Empty if the backend runs the task, or has no way to.
std::string why_not_chosen(const TaskAnswer& answer, const backend::Backend& engine,
                           const planner::Selection& selection) {
  const Considered* chosen = answer.chosen();
  const Considered* best = best_of(engine, answer);
  if (best == nullptr || chosen == nullptr || chosen->engine == &engine) return "";
  return concat(name_of(answer.task.direction), " ", decision(*best, *chosen, selection));
}

}  // namespace

std::vector<PatternExplanation> task_candidates(const planner::PlannedProblem& planned,
                                                const AttentionProblem& problem) {
  const planner::Prepared& prepared = planned.prepared;
  const bool has_choice = std::ranges::any_of(prepared.forward.considered, [](const Considered& considered) {
    return !considered.candidate.structural_key.empty();
  });
  if (!planned.target || (planned.selection.memory == MemoryKind::kHost && !has_choice)) return {};
  std::vector<PatternExplanation> tasks{explain_task(prepared.forward, planned, problem)};
  if (!prepared.backward) return tasks;
  tasks.push_back(explain_task(*prepared.backward, planned, problem));
  auto& reasons = tasks.back().reasons;
  reasons.insert(reasons.end(), prepared.notes.begin(), prepared.notes.end());
  if (prepared.fused_backward) tasks.push_back(explain_task(*prepared.fused_backward, planned, problem));
  if (prepared.operand_gradients) tasks.push_back(explain_task(*prepared.operand_gradients, planned, problem));
  return tasks;
}

std::string why_not_chosen(const planner::PlannedProblem& planned, const backend::Backend& engine) {
  const planner::Selection& selection = planned.selection;
  const MemoryKind memory = engine.memory().kind();
  if (memory != selection.memory) {
    return concat("its tensors lie in ", to_string(memory), " memory, and the calls' in ", to_string(selection.memory),
                  " memory");
  }
  if (std::ranges::find(selection.backends, &engine) == selection.backends.end())
    return concat("left out by ", selection.decided_by);
  std::string text = why_not_chosen(planned.prepared.forward, engine, selection);
  if (!planned.prepared.backward) return text;
  const std::string backward = why_not_chosen(*planned.prepared.backward, engine, selection);
  return concat(text, text.empty() || backward.empty() ? "" : "; ", backward);
}

}  // namespace scoremod::explaining
