#pragma once

#include <deque>

#include "planner/plan_task.hpp"

namespace scoremod::planner {

/// What tasks of one problem are expected to come to: plan_task()'s answers at Level::kStatic, each asked for once. All
/// that it is made with must outlive it; one thread at a time may ask.
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
