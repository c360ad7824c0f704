#include "planner/prepare.hpp"

#include <algorithm>
#include <functional>
#include <future>
#include <limits>
#include <utility>

#include "backend/unsupported.hpp"
#include "base/fail.hpp"
#include "planner/build_process.hpp"
#include "planner/composed_backward.hpp"
#include "planner/expected_answers.hpp"
#include "plans/planned_directions.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::planner {
namespace {

using backend::Backend;
using backend::Direction;
using backend::Task;
using compiler::CompiledProblem;
using Operands = std::vector<std::uint32_t>;

/// The answer of another thread, on the same device; `apart` builds its plan first.
std::future<TaskAnswer> plan_beside(const CompiledProblem& problem, const Task& task, const Request& request,
                                    verification::Trial& trial, std::optional<BuildRequest> apart) {
  return std::async(std::launch::async, [&problem, task, &request, &trial, apart = std::move(apart)] {
    const backend::DeviceScope device(request.backends.front()->memory(), request.target->ordinal);
    if (apart) {
      // The host's part of the trial that follows takes about as long, and needs none of it.
      if (!apart->trial.empty()) trial.begin(task.direction);
      build_apart(*apart);
    }
    return plan_task(problem, task, request, trial);
  });
}

/// The predicted time of a task; infinite if no candidate does it.
double predicted_ms(const Task& task, ExpectedAnswers& expected) {
  const Considered* chosen = expected.of(task).chosen();
  return chosen == nullptr ? std::numeric_limits<double>::infinity() : chosen->candidate.predicted.milliseconds;
}

/// The sets of operands whose gradients a fused backward is predicted to write faster than `attention_ms` and a pass of
/// their own.
std::vector<Operands> fused_sets(const CompiledProblem& problem, const Request& request, double attention_ms,
                                 ExpectedAnswers& expected, std::vector<std::string>& notes) {
  std::vector<Operands> sets;
  if (request.target == nullptr) return sets;
  for (const Backend* engine : request.backends) {
    for (Operands& operands : engine->fused_operand_gradients(problem, *request.target, notes)) {
      const double fused = predicted_ms({Direction::kBackward, true, operands}, expected);
      const double apart = attention_ms + predicted_ms({Direction::kBackward, false, operands}, expected);
      if (request.in_order || fused <= apart) {
        sets.push_back(std::move(operands));
      } else {
        notes.push_back(concat("gradient of ", names_of(problem.problem, operands),
                               " not fused with dq, dk and dv: predicted ", fused, " ms fused, and ", apart,
                               " ms in a pass of its own"));
      }
    }
  }
  return sets;
}

/// A task that is planned in parallel with the backward, because it is expected to be wanted.
struct Beside {
  Task task;
  std::future<TaskAnswer> answer;  ///< not valid where there is none
};

/// The answer of the task planned ahead, if it is this one; otherwise plans it now.
TaskAnswer answer_of(const Task& task, Beside& beside, const CompiledProblem& problem, const Request& request,
                     verification::Trial& trial) {
  if (beside.answer.valid() && beside.task == task) return beside.answer.get();
  return plan_task(problem, task, request, trial);
}

/// The best whole backward that writes some operands' gradients too.
std::optional<TaskAnswer> plan_fused(const CompiledProblem& problem, const Request& request, double attention_ms,
                                     verification::Trial& trial, Beside& beside, std::vector<std::string>& notes) {
  // Anew, because verdicts have come since.
  ExpectedAnswers expected(problem, request, trial);
  for (const Operands& operands : fused_sets(problem, request, attention_ms, expected, notes)) {
    TaskAnswer answer = answer_of({Direction::kBackward, true, operands}, beside, problem, request, trial);
    if (answer.chosen() != nullptr) return answer;
    const std::string names = names_of(problem.problem, operands);
    for (const UnsupportedReason& reason : answer.all_reasons()) {
      notes.push_back(concat("gradient of ", names, " not fused with dq, dk and dv: ", reason.text));
    }
  }
  return std::nullopt;
}

/// The task that is expected to make all operand gradients if the plain backward does not: a fused backward, or a pass
/// of its own.
std::optional<Task> expected_beside(const CompiledProblem& problem, const Request& request, ExpectedAnswers& expected) {
  const Operands operands = problem::operands_with_gradient(problem.problem);
  if (operands.empty()) return std::nullopt;
  const Considered* attention = expected.of({Direction::kBackward, true, {}}).chosen();
  if (attention == nullptr || attention->candidate.any_operand_gradients) return std::nullopt;
  std::vector<std::string> notes;
  const std::vector<Operands> fused =
      fused_sets(problem, request, attention->candidate.predicted.milliseconds, expected, notes);
  const bool all_fused = std::ranges::find(fused, operands) != fused.end();
  return Task{Direction::kBackward, all_fused, operands};
}

void plan_backward(const CompiledProblem& problem, const Request& request, verification::Trial& trial, Beside beside,
                   Prepared& prepared) {
  const Operands operands = problem::operands_with_gradient(problem.problem);
  const Considered* attention = prepared.backward->chosen();
  if (attention == nullptr || operands.empty() || attention->candidate.any_operand_gradients) return;
  prepared.fused_backward =
      plan_fused(problem, request, attention->candidate.predicted.milliseconds, trial, beside, prepared.notes);
  const bool all_fused = prepared.fused_backward && prepared.fused_backward->task.operand_gradients == operands;
  if (all_fused) return;
  prepared.operand_gradients = answer_of({Direction::kBackward, false, operands}, beside, problem, request, trial);
  // Gives a reason if no backend of this memory has such a pass.
  if (prepared.operand_gradients->reasons.empty()) {
    UnsupportedReason none = backend::unsupported(
        backend::Rule::kNoOperandGradient, concat("expected a backend for this memory that computes the gradients of ",
                                                  names_of(problem.problem, operands), ", found none"));
    none.direction = "backward";
    prepared.operand_gradients->reasons.push_back({request.backends.front(), {std::move(none)}});
  }
}

/// One task's part of the notes.
void add_notes(const char* what, const TaskAnswer& answer, std::vector<std::string>& notes) {
  const Considered* chosen = answer.chosen();
  if (chosen == nullptr) return;
  for (const Considered& passed : answer.considered) {
    if (passed.refusal) notes.push_back(concat(what, ": passed over: ", passed.refusal->text));
  }
  if (!answer.plan.note.empty()) notes.push_back(concat(what, ": ", answer.plan.note));
  const backend::Prediction& predicted = chosen->candidate.predicted;
  // Predictions are not shown for the host's own code, because nobody chooses by them.
  if (!chosen->candidate.structural_key.empty()) {
    notes.push_back(concat(what, ": predicted ", predicted.milliseconds, " ms (", predicted.source, ")"));
  }
}

}  // namespace

bool Prepared::runs_backward() const {
  return backward && backward->chosen() != nullptr && (!operand_gradients || operand_gradients->chosen() != nullptr);
}

std::vector<UnsupportedReason> Prepared::backward_reasons() const {
  if (!backward || runs_backward()) return {};
  return backward->chosen() == nullptr ? backward->all_reasons() : operand_gradients->all_reasons();
}

bool Prepared::left_for_later() const {
  const auto has_one = [](const TaskAnswer& answer) {
    return std::ranges::any_of(answer.considered, &Considered::left_for_later);
  };
  return has_one(forward) || (backward && has_one(*backward)) || (fused_backward && has_one(*fused_backward)) ||
         (operand_gradients && has_one(*operand_gradients));
}

std::vector<UnsupportedReason> Prepared::reasons() const {
  std::vector<UnsupportedReason> all;
  if (!runs_forward()) all = forward.all_reasons();
  for (UnsupportedReason& reason : backward_reasons()) {
    // A reason that holds for both directions is listed once.
    const auto same = [&](const UnsupportedReason& other) {
      return other.id == reason.id && other.text == reason.text;
    };
    const auto found = std::ranges::find_if(all, same);
    if (found == all.end()) {
      all.push_back(std::move(reason));
    } else {
      found->direction.clear();
    }
  }
  return all;
}

std::vector<std::string> Prepared::all_notes() const {
  std::vector<std::string> all;
  add_notes("forward", forward, all);
  if (backward) add_notes("backward", *backward, all);
  if (fused_backward) add_notes("backward with operands' gradients", *fused_backward, all);
  if (operand_gradients) add_notes("operands' gradients", *operand_gradients, all);
  all.insert(all.end(), notes.begin(), notes.end());
  return all;
}

Prepared prepare(const CompiledProblem& problem, const Request& request) {
  if (request.backends.empty()) fail_bug("a problem was to be planned without a backend");
  Prepared prepared;
  verification::Trial trial(problem);
  const bool wants_backward = problem.backward.has_value();
  const bool side_by_side = request.level != Level::kStatic && request.target != nullptr && request.target->present;
  if (request.level != Level::kStatic) {
    plans::count_planned_forward();
    if (wants_backward) plans::count_planned_backward();
  }
  const Task forward{Direction::kForward, true, {}};
  const Task whole{Direction::kBackward, true, {}};
  std::future<TaskAnswer> backward;
  Beside beside;
  if (wants_backward && side_by_side) {
    std::vector<Task> tasks{forward, whole};
    ExpectedAnswers expected(problem, request, trial);
    if (const auto third = expected_beside(problem, request, expected)) tasks.push_back(*third);
    std::vector<std::optional<BuildRequest>> apart = build_requests(problem, tasks, request, expected);
    backward = plan_beside(problem, whole, request, trial, std::move(apart[1]));
    if (tasks.size() > 2) beside = {tasks[2], plan_beside(problem, tasks[2], request, trial, std::move(apart[2]))};
  }
  prepared.forward = plan_task(problem, forward, request, trial);
  if (!wants_backward) {
    prepared.forward_plan = prepared.forward.plan.forward;
    return prepared;
  }
  prepared.backward = side_by_side ? backward.get() : plan_task(problem, whole, request, trial);
  plan_backward(problem, request, trial, std::move(beside), prepared);
  prepared.forward_plan = prepared.forward.plan.forward;
  if (prepared.runs_backward()) prepared.backward_plan = compose_backward(prepared);
  return prepared;
}

}  // namespace scoremod::planner
