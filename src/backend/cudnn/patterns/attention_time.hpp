#pragma once

#include <string_view>

#include "scoremod/problem.hpp"

#include "backend/candidate.hpp"
#include "backend/cudnn/graph/attention_graph.hpp"
#include "backend/cudnn/lowering/lower.hpp"
#include "backend/device_rates.hpp"

namespace scoremod::backend::cudnn {

/// Whose times the costs are made of.
inline constexpr std::string_view kTimedArchitecture = "sm_90";

/// The predicted time of one direction with this modifier. The patterns' costs at one shape (score_costs.hpp) apply to
/// the tiles that the modifier's band nodes leave, scaled by the head dims and the device. Pure; needs no device.
/// `timed` says whether the device is of kTimedArchitecture.
Prediction attention_time(const AttentionProblem& problem, const PlanTask& task, const LoweredModifier& modifier,
                          const DeviceRates& rates, bool timed);

}  // namespace scoremod::backend::cudnn
