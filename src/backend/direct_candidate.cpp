#include "backend/direct_candidate.hpp"

#include <utility>

#include "backend/direct_recipe.hpp"

namespace scoremod::backend {
namespace {

std::shared_ptr<const Recipe> recipe_of(const compiler::CompiledProblem& problem, Direction direction,
                                        DirectPlans plans) {
  auto own = std::make_shared<compiler::CompiledProblem>(problem);
  own->derived.share(problem.derived);
  const auto make_at_sizes = [direction, plans = std::move(plans)](const compiler::CompiledProblem& other,
                                                                   const PlanOptions& options) {
    ExecutablePlan plan;
    if (direction == Direction::kForward) {
      plan.forward = plans.forward(other, options);
    } else {
      plan.backward = plans.backward(other, options);
    }
    return plan;
  };
  const auto make = [own = std::move(own), make_at_sizes](const PlanOptions& options) {
    return make_at_sizes(*own, options);
  };
  return std::make_shared<const DirectRecipe>(make, make_at_sizes);
}

}  // namespace

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
  candidate.recipe = recipe_of(problem, task.direction, std::move(plans));
  return candidate;
}

}  // namespace scoremod::backend
