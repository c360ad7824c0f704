#include "backend/cudnn/handle.hpp"

#include <cudnn.h>
#include <dlfcn.h>
#include <map>

#include "backend/cuda/device.hpp"
#include "backend/cudnn/library.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::cudnn {
namespace {

template <class Function>
Function cudnn_function(const char* name) {
  void* symbol = dlsym(library().cudnn, name);
  if (symbol == nullptr) fail_environment("cuDNN has no ", name);
  return reinterpret_cast<Function>(symbol);
}

/// A thread's handles, one for each device. Destroyed on the thread that made them.
struct Handles {
  std::map<int, cudnnHandle_t> by_device;
  ~Handles() {
    for (const auto& [device, handle] : by_device) cudnn_function<decltype(&::cudnnDestroy)>("cudnnDestroy")(handle);
  }
};

}  // namespace

void* thread_handle() {
  if (!library().available) fail_environment(library().reason);
  thread_local Handles handles;
  cudnnHandle_t& handle = handles.by_device[cuda::current_device_ordinal()];
  if (handle == nullptr) {
    const cudnnStatus_t status = cudnn_function<decltype(&::cudnnCreate)>("cudnnCreate")(&handle);
    if (status != CUDNN_STATUS_SUCCESS) {
      fail_environment("cudnnCreate: ",
                       cudnn_function<decltype(&::cudnnGetErrorString)>("cudnnGetErrorString")(status));
    }
  }
  return handle;
}

}  // namespace scoremod::backend::cudnn
