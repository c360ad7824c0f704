#include "backend/cuda/device/driver_call.hpp"

#include "backend/cuda/device/cuda_failure.hpp"

namespace scoremod::backend::cuda {

void check_driver(CUresult status, const char* call) {
  if (status == CUDA_SUCCESS) return;
  const char* text = nullptr;
  SCOREMOD_DRIVER(cuGetErrorString)(status, &text);
  fail_cuda(call, status, text);
}

}  // namespace scoremod::backend::cuda
