#pragma once

#include <memory>

#include "backend/backend.hpp"

namespace scoremod::backend::cpu {

/// The problem must have its derivative.
std::unique_ptr<BackwardPlan> make_backward_plan(const compiler::CompiledProblem& problem, const PlanOptions& options);

}  // namespace scoremod::backend::cpu
