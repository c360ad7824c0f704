#include "backend/cuda/device/driver_call.hpp"

#include "base/fail.hpp"

namespace scoremod::backend::cuda {

void check_driver(CUresult status, const char* call) {
  if (status == CUDA_SUCCESS) return;
  const char* text = nullptr;
  SCOREMOD_DRIVER(cuGetErrorString)(status, &text);
  fail_environment(call, ": ", text == nullptr ? "an error without a text" : text);
}

}  // namespace scoremod::backend::cuda
