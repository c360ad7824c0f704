#pragma once

#include "backend/backend.hpp"

namespace scoremod::backend {

/// cuDNN's fused attention on the CUDA device that is current when a problem is compiled, with the program inside it.
/// Takes device memory. Runs only lowerings that were seen to compute the right thing: see docs/cudnn_forms.md.
const Backend& cudnn_backend();

}  // namespace scoremod::backend
