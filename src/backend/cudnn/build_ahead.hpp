#pragma once

#include <string_view>
#include <vector>

#include "backend/plan_ahead.hpp"

namespace scoremod::backend::cudnn {

/// cuDNN's part of plan_ahead(): for each direction the first candidate lowering that cuDNN builds, and the plan of the
/// trial that admits it. Where the machine
/// has no driver, loads the stand-in. What has been built so is admitted on the device at its first use, as anything
/// else.
std::vector<AheadPlan> build_ahead(const compiler::CompiledProblem& problem, std::string_view device_properties);

}  // namespace scoremod::backend::cudnn
