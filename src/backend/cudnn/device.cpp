#include "backend/cudnn/device.hpp"

#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <dlfcn.h>
#include <map>
#include <utility>

#include "backend/cudnn/library.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::cudnn {
namespace {

/// A function of the CUDA runtime, found once.
#define SCOREMOD_CUDART(name)                                                        \
  ([]() -> decltype(&::name) {                                                       \
    static const auto f = reinterpret_cast<decltype(&::name)>(cudart_symbol(#name)); \
    return f;                                                                        \
  }())

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) fail_environment(what, ": ", SCOREMOD_CUDART(cudaGetErrorString)(status));
}

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

int ordinal() {
  int device = 0;
  check(SCOREMOD_CUDART(cudaGetDevice)(&device), "cudaGetDevice");
  return device;
}

}  // namespace

DeviceInfo current_device() {
  DeviceInfo info;
  info.ordinal = ordinal();
  int major = 0, minor = 0;
  check(SCOREMOD_CUDART(cudaDeviceGetAttribute)(&major, cudaDevAttrComputeCapabilityMajor, info.ordinal),
        "cudaDeviceGetAttribute");
  check(SCOREMOD_CUDART(cudaDeviceGetAttribute)(&minor, cudaDevAttrComputeCapabilityMinor, info.ordinal),
        "cudaDeviceGetAttribute");
  info.compute_capability = major * 10 + minor;
  cudaDeviceProp properties{};
  check(SCOREMOD_CUDART(cudaGetDeviceProperties)(&properties, info.ordinal), "cudaGetDeviceProperties");
  info.name = properties.name;
  return info;
}

std::string version_text(std::size_t version) {
  return concat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

DeviceMemory::DeviceMemory(std::size_t bytes) : bytes_(bytes) {
  if (bytes > 0) check(SCOREMOD_CUDART(cudaMalloc)(&data_, bytes), "cudaMalloc");
}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

DeviceMemory::~DeviceMemory() {
  if (data_ != nullptr) SCOREMOD_CUDART(cudaFree)(data_);
}

void DeviceMemory::upload(const void* host, std::size_t bytes) {
  check(SCOREMOD_CUDART(cudaMemcpy)(data_, host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy to the device");
}

void DeviceMemory::download(void* host, std::size_t bytes) const {
  check(SCOREMOD_CUDART(cudaMemcpy)(host, data_, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy from the device");
}

void synchronize() { check(SCOREMOD_CUDART(cudaDeviceSynchronize)(), "cudaDeviceSynchronize"); }

DeviceTimer::DeviceTimer() {
  cudaEvent_t begin = nullptr, end = nullptr;
  check(SCOREMOD_CUDART(cudaEventCreate)(&begin), "cudaEventCreate");
  check(SCOREMOD_CUDART(cudaEventCreate)(&end), "cudaEventCreate");
  begin_ = begin;
  end_ = end;
}

DeviceTimer::~DeviceTimer() {
  SCOREMOD_CUDART(cudaEventDestroy)(static_cast<cudaEvent_t>(begin_));
  SCOREMOD_CUDART(cudaEventDestroy)(static_cast<cudaEvent_t>(end_));
}

void DeviceTimer::start() {
  check(SCOREMOD_CUDART(cudaEventRecord)(static_cast<cudaEvent_t>(begin_), nullptr), "cudaEventRecord");
}

double DeviceTimer::stop() {
  const auto end = static_cast<cudaEvent_t>(end_);
  check(SCOREMOD_CUDART(cudaEventRecord)(end, nullptr), "cudaEventRecord");
  check(SCOREMOD_CUDART(cudaEventSynchronize)(end), "cudaEventSynchronize");
  float milliseconds = 0;
  check(SCOREMOD_CUDART(cudaEventElapsedTime)(&milliseconds, static_cast<cudaEvent_t>(begin_), end),
        "cudaEventElapsedTime");
  return milliseconds;
}

void* thread_handle() {
  if (!library().available) fail_environment(library().reason);
  thread_local Handles handles;
  cudnnHandle_t& handle = handles.by_device[ordinal()];
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
