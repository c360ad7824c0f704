#pragma once

#include <memory>

#include "backend/backend.hpp"

namespace scoremod::backend {

/// Runs every valid problem, slowly, in float64. It defines the meaning of a problem.
const Backend& reference_backend();

namespace reference {

/// The reference backend's plans.
std::unique_ptr<ForwardPlan> make_forward_plan(const compiler::CompiledProblem& problem);
std::unique_ptr<BackwardPlan> make_backward_plan(const compiler::CompiledProblem& problem);

}  // namespace reference
}  // namespace scoremod::backend
