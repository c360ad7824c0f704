#pragma once

#include <functional>
#include <memory>

#include "backend/cudnn/direction_plan.hpp"
#include "backend/cudnn/graph/device_target.hpp"
#include "verification/verdict.hpp"

namespace scoremod::backend::cudnn {

/// Makes a plan of the same candidate lowering for the trial problem; throws Error where that fails.
using MakeTrialPlan = std::function<std::unique_ptr<const DirectionPlan>(const compiler::CompiledProblem& trial)>;

/// Whether a lowering may be used on the current device: from what is known of its structural key, or from a trial run
/// of it.
verification::Verdict verify_lowering(const compiler::CompiledProblem& problem, const PlanTask& task,
                                      const LoweredModifier& modifier, const DeviceTarget& target,
                                      const MakeTrialPlan& make_plan);

}  // namespace scoremod::backend::cudnn
