#pragma once

#include "backend/backend.hpp"

namespace scoremod::backend {

/// The pass that makes gradients of captured operands and nothing else (operand_gradients.hpp), beside the backward of
/// whichever engine runs on the CUDA device.
const Backend& operand_gradients_backend();

}  // namespace scoremod::backend
