#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/device/library.hpp"

/// A function of the CUDA runtime, found once: SCOREMOD_CUDART(cudaFree)(pointer).
#define SCOREMOD_CUDART(name)                                                                                   \
  ([]() -> decltype(&::name) {                                                                                  \
    static const auto f = reinterpret_cast<decltype(&::name)>(::scoremod::backend::cuda::cudart_symbol(#name)); \
    return f;                                                                                                   \
  }())

namespace scoremod::backend::cuda {

/// Throws Error(kEnvironment) with the runtime's own text, or with missing_driver()'s, unless the call succeeded. The
/// runtime forgets the error, if it can.
void check_runtime(cudaError_t status, const char* call);

/// While it lives, the calling thread may make calls that another thread's capture of a CUDA graph would forbid, such
/// as allocations. They must be on streams that capture nothing.
class RelaxedCapture {
 public:
  RelaxedCapture();
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace scoremod::backend::cuda
