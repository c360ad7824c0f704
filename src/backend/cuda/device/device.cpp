#include "backend/cuda/device/device.hpp"

#include <map>
#include <mutex>

#include "backend/cuda/device/driver_call.hpp"
#include "backend/cuda/device/runtime_call.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::cuda {
namespace {

// Attributes have the same numbers in every CUDA. The struct of cudaGetDeviceProperties() has not: the runtime of CUDA
// 12 writes fields where this library, made with CUDA 13, would read others.
int attribute_of(int ordinal, cudaDeviceAttr attribute) {
  int value = 0;
  check_runtime(SCOREMOD_CUDART(cudaDeviceGetAttribute)(&value, attribute, ordinal), "cudaDeviceGetAttribute");
  return value;
}

int compute_capability_of(int ordinal) {
  return attribute_of(ordinal, cudaDevAttrComputeCapabilityMajor) * 10 +
         attribute_of(ordinal, cudaDevAttrComputeCapabilityMinor);
}

/// The runtime has initialized the driver.
std::string name_of(int ordinal) {
  char name[256] = {};
  CUdevice device = 0;
  check_driver(SCOREMOD_DRIVER(cuDeviceGet)(&device, ordinal), "cuDeviceGet");
  check_driver(SCOREMOD_DRIVER(cuDeviceGetName)(name, sizeof name, device), "cuDeviceGetName");
  return name;
}

}  // namespace

int current_device_ordinal() {
  int device = 0;
  check_runtime(SCOREMOD_CUDART(cudaGetDevice)(&device), "cudaGetDevice");
  return device;
}

int current_compute_capability() { return compute_capability_of(current_device_ordinal()); }

DeviceInfo current_device() {
  DeviceInfo info;
  info.ordinal = current_device_ordinal();
  info.compute_capability = compute_capability_of(info.ordinal);
  info.name = name_of(info.ordinal);
  return info;
}

namespace {

/// The rates by the numbers that cuDNN writes into a device's properties too; those that the driver does not report
/// keep their defaults.
DeviceRates rates_of(int ordinal, int multiprocessors) {
  return device_rates(concat(R"({"multiProcessorCount": )", multiprocessors, R"(, "smClockRateKHz": )",
                             attribute_of(ordinal, cudaDevAttrClockRate), R"(, "memClockRateKHz": )",
                             attribute_of(ordinal, cudaDevAttrMemoryClockRate), R"(, "memoryBusWidth": )",
                             attribute_of(ordinal, cudaDevAttrGlobalMemoryBusWidth), "}"));
}

}  // namespace

const DeviceProperties& describe_current_device() {
  static std::mutex mutex;
  static std::map<int, DeviceProperties> known;
  const int ordinal = current_device_ordinal();
  const std::scoped_lock lock(mutex);
  const auto [entry, is_new] = known.try_emplace(ordinal);
  if (!is_new && entry->second.compute_capability != 0) return entry->second;
  DeviceProperties& properties = entry->second;
  const int compute_capability = compute_capability_of(ordinal);
  const int multiprocessors = attribute_of(ordinal, cudaDevAttrMultiProcessorCount);
  properties.name = name_of(ordinal);
  properties.multiprocessors = multiprocessors;
  properties.shared_memory_per_block = attribute_of(ordinal, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  properties.l2_cache_bytes = attribute_of(ordinal, cudaDevAttrL2CacheSize);
  properties.rates = rates_of(ordinal, multiprocessors);
  properties.compute_capability = compute_capability;  // the last: that they are known
  return properties;
}

DeviceTimer::DeviceTimer(void* stream) : stream_(stream) {
  cudaEvent_t begin = nullptr, end = nullptr;
  check_runtime(SCOREMOD_CUDART(cudaEventCreate)(&begin), "cudaEventCreate");
  const cudaError_t status = SCOREMOD_CUDART(cudaEventCreate)(&end);
  if (status != cudaSuccess) SCOREMOD_CUDART(cudaEventDestroy)(begin);
  check_runtime(status, "cudaEventCreate");
  begin_ = begin;
  end_ = end;
}

DeviceTimer::~DeviceTimer() {
  SCOREMOD_CUDART(cudaEventDestroy)(static_cast<cudaEvent_t>(begin_));
  SCOREMOD_CUDART(cudaEventDestroy)(static_cast<cudaEvent_t>(end_));
}

void DeviceTimer::start() {
  const RelaxedCapture relaxed;
  check_runtime(SCOREMOD_CUDART(cudaEventRecord)(static_cast<cudaEvent_t>(begin_), static_cast<cudaStream_t>(stream_)),
                "cudaEventRecord");
}

double DeviceTimer::stop() {
  const RelaxedCapture relaxed;
  const auto end = static_cast<cudaEvent_t>(end_);
  check_runtime(SCOREMOD_CUDART(cudaEventRecord)(end, static_cast<cudaStream_t>(stream_)), "cudaEventRecord");
  check_runtime(SCOREMOD_CUDART(cudaEventSynchronize)(end), "cudaEventSynchronize");
  float milliseconds = 0;
  check_runtime(SCOREMOD_CUDART(cudaEventElapsedTime)(&milliseconds, static_cast<cudaEvent_t>(begin_), end),
                "cudaEventElapsedTime");
  return milliseconds;
}

}  // namespace scoremod::backend::cuda
