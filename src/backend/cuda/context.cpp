#include "backend/cuda/context.hpp"

#include "backend/cuda/driver_call.hpp"
#include "backend/cuda/runtime_call.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::cuda {
namespace {

void* driver_context() {
  CUcontext context = nullptr;
  const CUresult status = SCOREMOD_DRIVER(cuCtxGetCurrent)(&context);
  // The process's first call: the runtime initializes the driver when it makes the primary context.
  if (status == CUDA_ERROR_NOT_INITIALIZED) return nullptr;
  check_driver(status, "cuCtxGetCurrent");
  return context;
}

void make_primary_current() {
  const RelaxedCapture relaxed;
  check_runtime(SCOREMOD_CUDART(cudaFree)(nullptr), "cudaFree");
}

std::uint64_t driver_id(void* context) {
  unsigned long long id = 0;
  check_driver(SCOREMOD_DRIVER(cuCtxGetId)(static_cast<CUcontext>(context), &id), "cuCtxGetId");
  return id;
}

}  // namespace

std::uint64_t current_context(const ContextCalls& calls) {
  void* context = calls.current();
  if (context == nullptr) {
    calls.make_primary_current();
    context = calls.current();
  }
  if (context == nullptr) fail_environment("the calling thread has no CUDA context, and its device gave it none");
  return calls.id(context);
}

std::uint64_t current_context() {
  if (!library().available) fail_environment(library().reason);
  return current_context({driver_context, make_primary_current, driver_id});
}

}  // namespace scoremod::backend::cuda
