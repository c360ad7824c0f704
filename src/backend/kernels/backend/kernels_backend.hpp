#pragma once

#include "backend/backend.hpp"

namespace scoremod::backend {

/// Attention kernels of scoremod's own, generated from the program, on NVIDIA devices from sm_80 on; they need a driver
/// and NVRTC.
const Backend& kernels_backend();

/// Gradients of operands by tiles of scores, in kernels of scoremod's own, beside any engine's backward.
const Backend& operand_kernels_backend();

}  // namespace scoremod::backend
