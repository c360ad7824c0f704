#include "backend/cuda/device.hpp"

#include <cuda_runtime_api.h>
#include <utility>

#include "backend/cuda/library.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::cuda {
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

}  // namespace

int current_device_ordinal() {
  int device = 0;
  check(SCOREMOD_CUDART(cudaGetDevice)(&device), "cudaGetDevice");
  return device;
}

DeviceInfo current_device() {
  DeviceInfo info;
  info.ordinal = current_device_ordinal();
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

}  // namespace scoremod::backend::cuda
