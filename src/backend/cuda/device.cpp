#include "backend/cuda/device.hpp"

#include <map>
#include <mutex>

#include "backend/cuda/runtime_call.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::cuda {
int current_device_ordinal() {
  int device = 0;
  check_runtime(SCOREMOD_CUDART(cudaGetDevice)(&device), "cudaGetDevice");
  return device;
}

int current_compute_capability() {
  const int ordinal = current_device_ordinal();
  int major = 0, minor = 0;
  check_runtime(SCOREMOD_CUDART(cudaDeviceGetAttribute)(&major, cudaDevAttrComputeCapabilityMajor, ordinal),
                "cudaDeviceGetAttribute");
  check_runtime(SCOREMOD_CUDART(cudaDeviceGetAttribute)(&minor, cudaDevAttrComputeCapabilityMinor, ordinal),
                "cudaDeviceGetAttribute");
  return major * 10 + minor;
}

DeviceInfo current_device() {
  DeviceInfo info;
  info.ordinal = current_device_ordinal();
  info.compute_capability = current_compute_capability();
  cudaDeviceProp properties{};
  check_runtime(SCOREMOD_CUDART(cudaGetDeviceProperties)(&properties, info.ordinal), "cudaGetDeviceProperties");
  info.name = properties.name;
  return info;
}

namespace {

int attribute_of(int ordinal, cudaDeviceAttr attribute) {
  int value = 0;
  check_runtime(SCOREMOD_CUDART(cudaDeviceGetAttribute)(&value, attribute, ordinal), "cudaDeviceGetAttribute");
  return value;
}

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
  cudaDeviceProp read{};
  check_runtime(SCOREMOD_CUDART(cudaGetDeviceProperties)(&read, ordinal), "cudaGetDeviceProperties");
  DeviceProperties& properties = entry->second;
  properties.name = read.name;
  properties.multiprocessors = read.multiProcessorCount;
  properties.shared_memory_per_block = static_cast<std::int64_t>(read.sharedMemPerBlockOptin);
  properties.l2_cache_bytes = read.l2CacheSize;
  properties.rates = rates_of(ordinal, read.multiProcessorCount);
  properties.compute_capability = read.major * 10 + read.minor;
  return properties;
}

DeviceTimer::DeviceTimer(void* stream) : stream_(stream) {
  cudaEvent_t begin = nullptr, end = nullptr;
  check_runtime(SCOREMOD_CUDART(cudaEventCreate)(&begin), "cudaEventCreate");
  check_runtime(SCOREMOD_CUDART(cudaEventCreate)(&end), "cudaEventCreate");
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
