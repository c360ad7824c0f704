#include "backend/cuda/device/cuda_event.hpp"

#include "backend/cuda/device/driver_call.hpp"
#include "backend/cuda/device/runtime_call.hpp"

namespace scoremod::backend::cuda {

CudaEvent::CudaEvent(void* stream) {
  check_runtime(SCOREMOD_CUDART(cudaEventCreateWithFlags)(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  try {
    check_runtime(SCOREMOD_CUDART(cudaEventRecord)(event_, static_cast<cudaStream_t>(stream)), "cudaEventRecord");
  } catch (...) {
    SCOREMOD_CUDART(cudaEventDestroy)(event_);
    throw;
  }
}

CudaEvent::~CudaEvent() { SCOREMOD_CUDART(cudaEventDestroy)(event_); }

void CudaEvent::wait() const {
  const RelaxedCapture relaxed;
  check_runtime(SCOREMOD_CUDART(cudaEventSynchronize)(event_), "cudaEventSynchronize");
}

bool CudaEvent::has_passed() const {
  const RelaxedCapture relaxed;
  // The runtime's function would leave "not ready" as the thread's last error, which a framework may ask for.
  const CUresult status = SCOREMOD_DRIVER(cuEventQuery)(event_);
  if (status == CUDA_ERROR_NOT_READY) return false;
  check_driver(status, "cuEventQuery");
  return true;
}

void CudaEvent::hold_back(void* stream) const {
  check_runtime(SCOREMOD_CUDART(cudaStreamWaitEvent)(static_cast<cudaStream_t>(stream), event_, 0),
                "cudaStreamWaitEvent");
}

}  // namespace scoremod::backend::cuda
