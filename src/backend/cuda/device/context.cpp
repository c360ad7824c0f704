#include "backend/cuda/device/context.hpp"

#include "backend/cuda/device/driver_call.hpp"
#include "backend/cuda/device/runtime_call.hpp"
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

const ContextCalls& driver_calls() {
  if (!library().available) fail_environment(library().reason);
  static constexpr ContextCalls kCalls{driver_context, make_primary_current, driver_id};
  return kCalls;
}

}  // namespace

std::optional<std::uint64_t> context_of_thread(const ContextCalls& calls) {
  void* const context = calls.current();
  if (context == nullptr) return std::nullopt;
  return calls.id(context);
}

std::uint64_t current_context(const ContextCalls& calls) {
  if (const auto own = context_of_thread(calls)) return *own;
  calls.make_primary_current();
  const auto made = context_of_thread(calls);
  if (!made) fail_environment("the calling thread has no CUDA context, and its device gave it none");
  return *made;
}

std::uint64_t current_context() { return current_context(driver_calls()); }
std::optional<std::uint64_t> context_of_thread() { return context_of_thread(driver_calls()); }

}  // namespace scoremod::backend::cuda
