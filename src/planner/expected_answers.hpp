#pragma once

#include <deque>

#include "planner/plan_task.hpp"

namespace scoremod::planner {

/// The expected answers for tasks of one problem: plan_task()'s at Level::kStatic, each computed once. Its
/// constructor's arguments must outlive it; one thread at a time may ask.
class ExpectedAnswers {
 public:
  ExpectedAnswers(const compiler::CompiledProblem& problem, Request request, verification::Trial& trial);

  /// Valid as long as this is. Throws as plan_task() does.
  const TaskAnswer& of(const backend::Task& task);

 private:
  const compiler::CompiledProblem& problem_;
  Request request_;
  verification::Trial& trial_;
  std::deque<TaskAnswer> answers_;  // whose elements stay where they are
};

}  // namespace scoremod::planner
