#pragma once

#include <string>

#include "backend/cudnn/graph/attention_graph.hpp"
#include "backend/cudnn/graph/device_target.hpp"
#include "backend/cudnn/lowering/lower.hpp"

namespace scoremod::backend::cudnn {

/// The text that two lowerings share when a trial of one speaks for the other: nodes, tensors by the axes that they
/// extend and repeat along, constants by their sign, the task, dtype, determinism, head dims, and which of batch,
/// heads and lengths are one, equal or unequal; architecture and cuDNN version.
std::string structural_key(const LoweredModifier& modifier, const AttentionProblem& problem, const PlanTask& task,
                           const DeviceTarget& target);

}  // namespace scoremod::backend::cudnn
