#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "planner/plan_task.hpp"

namespace scoremod::planner {

/// The answers to all tasks of a problem.
struct Prepared {
  TaskAnswer forward;
  std::optional<TaskAnswer> backward;           ///< dq, dk and dv; present when the problem wants a backward
  std::optional<TaskAnswer> fused_backward;     ///< and some operand gradients too, by one backend
  std::optional<TaskAnswer> operand_gradients;  ///< those alone, where a call may need them so
  std::vector<std::string> notes;

  // The plans that run, at Level::kBuilt and above on a device that is here. The backward is whole: it includes operand
  // gradients.
  std::shared_ptr<const backend::ForwardPlan> forward_plan;
  std::shared_ptr<const backend::BackwardPlan> backward_plan;

  bool runs_forward() const { return forward.chosen() != nullptr; }
  bool runs_backward() const;
  /// Why the backward does not run; empty where it does or is not wanted.
  std::vector<UnsupportedReason> backward_reasons() const;
  /// Whether a faster candidate of a task was passed over because it was not ready.
  bool left_for_later() const;
  /// The reasons of both directions.
  std::vector<UnsupportedReason> reasons() const;
  /// The running plans with their predicted times, and why others were passed over; empty if nothing runs.
  std::vector<std::string> all_notes() const;
};

/// Plans a problem: the one road for support, compile, explain, plans ahead of time and measurements. Both directions,
/// and the task that is expected to make operand gradients, are planned in parallel if the level builds on a device
/// that is here. A refused direction does not keep the other from running. Throws as plan_task() does.
Prepared prepare(const compiler::CompiledProblem& problem, const Request& request);

}  // namespace scoremod::planner
