#include "planner/expected_answers.hpp"

#include <algorithm>
#include <utility>

namespace scoremod::planner {

ExpectedAnswers::ExpectedAnswers(const compiler::CompiledProblem& problem, Request request, verification::Trial& trial)
    : problem_(problem), request_(std::move(request)), trial_(trial) {
  request_.level = Level::kStatic;
}

const TaskAnswer& ExpectedAnswers::of(const backend::Task& task) {
  const auto known = std::ranges::find(answers_, task, &TaskAnswer::task);
  if (known != answers_.end()) return *known;
  return answers_.emplace_back(plan_task(problem_, task, request_, trial_));
}

}  // namespace scoremod::planner
