#pragma once

#include "backend/backend.hpp"

namespace scoremod::backend {

/// The pass that computes operand gradients and nothing else (operand_gradients.hpp), beside the backward of any
/// backend on the CUDA device.
const Backend& operand_gradients_backend();

}  // namespace scoremod::backend
