#include "backend/cudnn/graph/handle.hpp"

#include <cstdint>
#include <cudnn.h>
#include <dlfcn.h>
#include <map>

#include "backend/cuda/context.hpp"
#include "backend/cuda/runtime_call.hpp"
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

using HandlesByContext = std::map<std::uint64_t, cudnnHandle_t>;

/// A thread's handles, one for each CUDA context. Destroyed on the thread that made them.
struct Handles {
  HandlesByContext by_context;
  ~Handles() {
    const std::lock_guard lock(construction_turns());
    for (const auto& [context, handle] : by_context) cudnn_function<decltype(&::cudnnDestroy)>("cudnnDestroy")(handle);
  }
};

/// The current context's, made where there is none yet.
void* handle_in(HandlesByContext& handles) {
  require_library();
  cudnnHandle_t& handle = handles[cuda::current_context()];
  if (handle != nullptr) return handle;
  // It may be a thread's first call that is being captured.
  const cuda::RelaxedCapture relaxed;
  const std::lock_guard lock(construction_turns());
  const TimedStep step("cudnnCreate");
  const cudnnStatus_t status = cudnn_function<decltype(&::cudnnCreate)>("cudnnCreate")(&handle);
  if (status == CUDNN_STATUS_SUCCESS) return handle;
  fail_environment("cudnnCreate: ", cudnn_function<decltype(&::cudnnGetErrorString)>("cudnnGetErrorString")(status));
}

}  // namespace

std::mutex& construction_turns() {
  static std::mutex mutex;
  return mutex;
}

void* thread_handle() {
  thread_local Handles handles;
  return handle_in(handles.by_context);
}

void* builder_handle() {
  static std::mutex mutex;
  static auto* const by_context = new HandlesByContext;  // lives until the process ends
  const std::lock_guard lock(mutex);
  return handle_in(*by_context);
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
