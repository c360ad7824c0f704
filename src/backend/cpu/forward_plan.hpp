#pragma once

#include <memory>

#include "backend/backend.hpp"

namespace scoremod::backend::cpu {

std::unique_ptr<ForwardPlan> make_forward_plan(const compiler::CompiledProblem& problem, const PlanOptions& options);

}  // namespace scoremod::backend::cpu
