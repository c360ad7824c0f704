#pragma once

#include "backend/backend.hpp"

namespace scoremod::backend {

/// Gradients of operands by tiles of scores, in kernels of scoremod's own, beside any engine's backward.
const Backend& operand_kernels_backend();

}  // namespace scoremod::backend
