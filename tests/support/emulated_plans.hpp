#pragma once

#include <memory>

#include "backend/plan.hpp"
#include "support/emulated_device.hpp"

namespace scoremod::test {

/// The attention kernels of a direction as a plan, on the emulated device.
std::unique_ptr<backend::ForwardPlan> emulated_forward_plan(const compiler::CompiledProblem& compiled,
                                                            const backend::kernels::AnyShape& shape);
/// The forward of any family's variant, with a fault if it is planted.
std::unique_ptr<backend::ForwardPlan> emulated_forward_plan(const compiler::CompiledProblem& compiled,
                                                            const backend::kernels::Variant& variant,
                                                            const EmulatedLaunches::Fault& fault = {});
std::unique_ptr<backend::BackwardPlan> emulated_backward_plan(const compiler::CompiledProblem& compiled,
                                                              const backend::kernels::AnyShape& shape);

}  // namespace scoremod::test
