#pragma once

namespace scoremod::backend::cuda {

/// Throws the error of a CUDA call that failed with this code: Error(kEnvironment) with CUDA's own text, and what to do
/// where that is known. ContextLost if nothing can be done on the device by this process any more. The driver and the
/// runtime have the same codes.
[[noreturn]] void fail_cuda(const char* call, int code, const char* text);

}  // namespace scoremod::backend::cuda
