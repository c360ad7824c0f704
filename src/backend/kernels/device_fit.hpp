#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "backend/device_properties.hpp"
#include "backend/kernels/direction_kernels.hpp"

namespace scoremod::backend::kernels {

/// Why a device cannot run what these kernels are made of, whatever the problem.
std::vector<UnsupportedReason> device_objections(const DeviceProperties& device);
/// The reasons why a launch has too little shared memory on this device.
std::vector<UnsupportedReason> memory_objections(const std::vector<KernelLaunch>& launches,
                                                 const DeviceProperties& device);

}  // namespace scoremod::backend::kernels
