#pragma once

#include <memory>

#include "backend/kernels/loading/loaded_modules.hpp"
#include "backend/kernels/workspace/kernel_call.hpp"
#include "backend/plan.hpp"

namespace scoremod::backend::kernels {

/// Plans of calls on the device that is current; `modules` are of the calls' kernels, at any sizes. They write o and
/// lse, or dq, dk and dv, or the gradients of operands, as far as the kernels do. They wait for nothing and allocate
/// nothing, may be captured into a CUDA graph, and give the same bits each time. Throw Error(kEnvironment) with the
/// driver's text.
std::unique_ptr<ForwardPlan> forward_plan(KernelCall call, std::shared_ptr<LoadedModules> modules);
std::unique_ptr<BackwardPlan> backward_plan(KernelCall call, std::shared_ptr<LoadedModules> modules);

}  // namespace scoremod::backend::kernels
