#pragma once

#include <functional>
#include <memory>

#include "backend/candidate.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend {

/// How a backend of the host makes the plan of either direction.
struct DirectPlans {
  std::function<std::unique_ptr<ForwardPlan>(const compiler::CompiledProblem&, const PlanOptions&)> forward;
  std::function<std::unique_ptr<BackwardPlan>(const compiler::CompiledProblem&, const PlanOptions&)> backward;
};

/// A task's one candidate if plans are made at once and write every operand gradient that a call asks for. Its time is
/// predicted from the MMAs of all pairs, at `flops_per_millisecond`.
Candidate direct_candidate(const compiler::CompiledProblem& problem, const Task& task, double flops_per_millisecond,
                           DirectPlans plans);

}  // namespace scoremod::backend
