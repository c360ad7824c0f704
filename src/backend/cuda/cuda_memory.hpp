#pragma once

#include "backend/memory_space.hpp"

namespace scoremod::backend::cuda {

/// Memory of the device that is current on the calling thread. Tensors start at multiples of 16 bytes, what cuDNN's
/// fused attention reads at a time.
const MemorySpace& cuda_memory();

}  // namespace scoremod::backend::cuda
