#include "backend/cuda/device.hpp"

#include <map>
#include <mutex>
#include <utility>

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

/// The same numbers as cuDNN writes into a device's properties; what the driver does not say stays as there.
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

DeviceMemory::DeviceMemory(std::size_t bytes) : bytes_(bytes) {
  if (bytes > 0) check_runtime(SCOREMOD_CUDART(cudaMalloc)(&data_, bytes), "cudaMalloc");
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
  check_runtime(SCOREMOD_CUDART(cudaMemcpy)(data_, host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy to the device");
}

void DeviceMemory::download(void* host, std::size_t bytes) const {
  check_runtime(SCOREMOD_CUDART(cudaMemcpy)(host, data_, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy from the device");
}

void synchronize() { check_runtime(SCOREMOD_CUDART(cudaDeviceSynchronize)(), "cudaDeviceSynchronize"); }

DeviceTimer::DeviceTimer() {
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
  check_runtime(SCOREMOD_CUDART(cudaEventRecord)(static_cast<cudaEvent_t>(begin_), nullptr), "cudaEventRecord");
}

double DeviceTimer::stop() {
  const auto end = static_cast<cudaEvent_t>(end_);
  check_runtime(SCOREMOD_CUDART(cudaEventRecord)(end, nullptr), "cudaEventRecord");
  check_runtime(SCOREMOD_CUDART(cudaEventSynchronize)(end), "cudaEventSynchronize");
  float milliseconds = 0;
  check_runtime(SCOREMOD_CUDART(cudaEventElapsedTime)(&milliseconds, static_cast<cudaEvent_t>(begin_), end),
                "cudaEventElapsedTime");
  return milliseconds;
}

}  // namespace scoremod::backend::cuda
