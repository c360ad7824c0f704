#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "backend/device_properties.hpp"
#include "backend/kernels/workspace/call_layout.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::kernels {

/// Why no tiled kernels can be made for a problem, whatever the device; empty where they can.
std::vector<UnsupportedReason> problem_objections(const compiler::CompiledProblem& problem);
/// problem_objections(), and device_objections() if there are none and there is a device.
std::vector<UnsupportedReason> tiled_objections(const compiler::CompiledProblem& problem,
                                                const DeviceProperties* device);
/// Why a device cannot run what these kernels are made of, whatever the problem.
std::vector<UnsupportedReason> device_objections(const DeviceProperties& device);
/// The reasons why a launch has too little shared memory on this device.
std::vector<UnsupportedReason> memory_objections(const std::vector<KernelLaunch>& launches,
                                                 const DeviceProperties& device);

}  // namespace scoremod::backend::kernels
