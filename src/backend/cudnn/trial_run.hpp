#pragma once

#include <vector>

#include "backend/cudnn/direction_plan.hpp"
#include "backend/cudnn/output_error.hpp"

namespace scoremod::backend::cudnn {

/// Runs a plan once on the current device, on random inputs of its problem and into outputs filled with NaN, and
/// compares what it writes with the float64 oracle: o and lse in forward; dq, dk, dv and the task's operand gradient in
/// backward, from the oracle's own o and lse. Throws Error(kEnvironment) where the device fails.
std::vector<OutputError> trial_run(const compiler::CompiledProblem& problem, const PlanTask& task,
                                   const DirectionPlan& plan);

}  // namespace scoremod::backend::cudnn
