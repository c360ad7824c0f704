#include "backend/cuda/device/cuda_event.hpp"

#include "backend/cuda/device/context.hpp"
#include "backend/cuda/device/driver_call.hpp"
#include "backend/cuda/device/runtime_call.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::cuda {

CudaEvent::CudaEvent(void* stream) : context_(current_context()) {
  check_runtime(SCOREMOD_CUDART(cudaEventCreateWithFlags)(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  try {
    check_runtime(SCOREMOD_CUDART(cudaEventRecord)(event_, static_cast<cudaStream_t>(stream)), "cudaEventRecord");
  } catch (...) {
    SCOREMOD_CUDART(cudaEventDestroy)(event_);
    throw;
  }
}

CudaEvent::~CudaEvent() {
  if (is_there(context_)) SCOREMOD_CUDART(cudaEventDestroy)(event_);
}

void CudaEvent::require_there() const {
  if (is_there(context_)) return;
  fail_environment(
      "the work's CUDA context is gone before the work was seen to be done: its device was reset (cudaDeviceReset), or "
      "the context was destroyed; call it again");
}

void CudaEvent::wait() const {
  require_there();
  const RelaxedCapture relaxed;
  check_runtime(SCOREMOD_CUDART(cudaEventSynchronize)(event_), "cudaEventSynchronize");
}

bool CudaEvent::has_passed() const {
  require_there();
  const RelaxedCapture relaxed;
  // The runtime's function would leave "not ready" as the thread's last error, which a framework may ask for.
  const CUresult status = SCOREMOD_DRIVER(cuEventQuery)(event_);
  if (status == CUDA_ERROR_NOT_READY) return false;
  check_driver(status, "cuEventQuery");
  return true;
}

void CudaEvent::hold_back(void* stream) const {
  require_there();
  check_runtime(SCOREMOD_CUDART(cudaStreamWaitEvent)(static_cast<cudaStream_t>(stream), event_, 0),
                "cudaStreamWaitEvent");
}

}  // namespace scoremod::backend::cuda
