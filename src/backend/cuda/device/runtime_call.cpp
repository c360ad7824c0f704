#include "backend/cuda/device/runtime_call.hpp"

#include "backend/cuda/device/cuda_failure.hpp"
#include "backend/cuda/device/load_stub_driver.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::cuda {

void check_runtime(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  // The thread's next cudaGetLastError(), a framework's behind a launch of its own, would report it again.
  SCOREMOD_CUDART(cudaGetLastError)();
  if (const std::string missing = missing_driver(); !missing.empty()) fail_environment(missing);
  fail_cuda(call, status, SCOREMOD_CUDART(cudaGetErrorString)(status));
}

RelaxedCapture::RelaxedCapture() {
  check_runtime(SCOREMOD_CUDART(cudaThreadExchangeStreamCaptureMode)(&mode_), "cudaThreadExchangeStreamCaptureMode");
}

RelaxedCapture::~RelaxedCapture() { SCOREMOD_CUDART(cudaThreadExchangeStreamCaptureMode)(&mode_); }

}  // namespace scoremod::backend::cuda
