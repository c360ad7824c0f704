#pragma once

#include <memory>

#include "backend/backend.hpp"
#include "backend/cudnn/lowering/lower.hpp"

namespace scoremod::backend {

/// cuDNN's fused attention on the CUDA device that is current when a problem is compiled, with the program inside it.
/// Takes device memory. Runs only lowerings that were seen to compute the right thing: see docs/internals/cudnn.md.
const Backend& cudnn_backend();

/// One that lowers into the patterns that `allowed` is true of, whatever is known of them. Tests plant wrong ones.
std::unique_ptr<const Backend> make_cudnn_backend(cudnn::PatternFilter allowed);

}  // namespace scoremod::backend
