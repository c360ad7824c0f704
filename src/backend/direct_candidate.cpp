#include "backend/direct_candidate.hpp"

#include <utility>

#include "backend/direct_recipe.hpp"

namespace scoremod::backend {

Candidate direct_candidate(const compiler::CompiledProblem& problem, const Task& task, double flops_per_millisecond,
                           DirectPlans plans) {
  const AttentionProblem& p = problem.problem;
  const double pairs = static_cast<double>(p.batch) * static_cast<double>(p.heads_q) * static_cast<double>(p.seq_q) *
                       static_cast<double>(p.seq_kv);
  const double products = task.direction == Direction::kForward ? 2 : 5;
  Candidate candidate;
  candidate.task = task;
  candidate.any_operand_gradients = true;
  candidate.predicted = {pairs * products * static_cast<double>(p.dim_qk + p.dim_v) / flops_per_millisecond,
                         "assumed rate"};
  const auto make = [problem, plans = std::move(plans), direction = task.direction](const PlanOptions& options) {
    ExecutablePlan plan;
    if (direction == Direction::kForward) {
      plan.forward = plans.forward(problem, options);
    } else {
      plan.backward = plans.backward(problem, options);
    }
    return plan;
  };
  candidate.recipe = std::make_shared<DirectRecipe>(make);
  return candidate;
}

}  // namespace scoremod::backend
