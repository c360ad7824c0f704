#pragma once

#include "backend/candidate.hpp"
#include "backend/cudnn/graph/device_target.hpp"
#include "backend/cudnn/lowering/lower.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::cudnn {

/// How long attention with this modifier will take: what its patterns were measured to cost beside attention without a
/// modifier, scaled by the problem's size.
Prediction predicted_time(const compiler::CompiledProblem& problem, const PlanTask& task,
                          const LoweredModifier& modifier, const FormTable& table, const DeviceTarget& target);

}  // namespace scoremod::backend::cudnn
