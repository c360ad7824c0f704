#include "backend/cudnn/graph/handle.hpp"

#include <cudnn.h>
#include <dlfcn.h>

#include "backend/cuda/device/runtime_call.hpp"
#include "backend/cuda/device/thread_things.hpp"
#include "backend/cudnn/graph/library.hpp"
#include "base/fail.hpp"
#include "base/timeline.hpp"

namespace scoremod::backend::cudnn {
namespace {

template <class Function>
Function cudnn_function(const char* name) {
  void* symbol = dlsym(library().cudnn, name);
  if (symbol == nullptr) fail_environment("cuDNN has no ", name);
  return reinterpret_cast<Function>(symbol);
}

struct CudnnHandle {
  static void* make() {
    // It may be a thread's first call that is being captured.
    const cuda::RelaxedCapture relaxed;
    const std::lock_guard lock(construction_turns());
    const TimedStep step("cudnnCreate");
    cudnnHandle_t handle = nullptr;
    const cudnnStatus_t status = cudnn_function<decltype(&::cudnnCreate)>("cudnnCreate")(&handle);
    if (status == CUDNN_STATUS_SUCCESS) return handle;
    fail_environment("cudnnCreate: ", cudnn_function<decltype(&::cudnnGetErrorString)>("cudnnGetErrorString")(status));
  }
};

}  // namespace

std::mutex& construction_turns() {
  static std::mutex mutex;
  return mutex;
}

void* thread_handle() {
  require_library();
  return cuda::thing_of_thread<CudnnHandle>();
}

void* builder_handle() {
  static std::mutex mutex;
  static auto& things = *new cuda::ThreadThings(*new cuda::IdleThings);  // lives until the process ends
  require_library();
  const std::lock_guard lock(mutex);
  return things.of_current_context(CudnnHandle::make);
}

void* thread_handle(void* stream) {
  void* handle = thread_handle();
  static const auto set_stream = cudnn_function<decltype(&::cudnnSetStream)>("cudnnSetStream");
  const cudnnStatus_t status = set_stream(static_cast<cudnnHandle_t>(handle), static_cast<cudaStream_t>(stream));
  if (status != CUDNN_STATUS_SUCCESS) {
    fail_environment("cudnnSetStream: ",
                     cudnn_function<decltype(&::cudnnGetErrorString)>("cudnnGetErrorString")(status));
  }
  return handle;
}

}  // namespace scoremod::backend::cudnn
