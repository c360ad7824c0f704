#include "backend/cuda/device/memory_pool.hpp"

#include <cstdint>
#include <map>
#include <mutex>

#include "backend/cuda/device/device.hpp"
#include "backend/cuda/device/own_stream.hpp"
#include "backend/cuda/device/retirement.hpp"
#include "backend/cuda/device/runtime_call.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::cuda {
namespace {

/// A pool gives memory beyond this back to the device whenever a stream is waited for. Trials use less.
constexpr std::uint64_t kKeptBytes = std::uint64_t{64} << 20;

cudaMemPool_t make_pool(int device) {
  int is_supported = 0;
  check_runtime(SCOREMOD_CUDART(cudaDeviceGetAttribute)(&is_supported, cudaDevAttrMemoryPoolsSupported, device),
                "cudaDeviceGetAttribute");
  if (is_supported == 0) return nullptr;
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device;
  cudaMemPool_t pool = nullptr;
  check_runtime(SCOREMOD_CUDART(cudaMemPoolCreate)(&pool, &properties), "cudaMemPoolCreate");
  const auto set = [pool](cudaMemPoolAttr attribute, auto value) {
    const cudaError_t status = SCOREMOD_CUDART(cudaMemPoolSetAttribute)(pool, attribute, &value);
    if (status != cudaSuccess) SCOREMOD_CUDART(cudaMemPoolDestroy)(pool);
    check_runtime(status, "cudaMemPoolSetAttribute");
  };
  set(cudaMemPoolAttrReleaseThreshold, kKeptBytes);
  // One stream's memory would come to another that is made to wait for the first.
  set(cudaMemPoolReuseAllowInternalDependencies, 0);
  return pool;
}

/// The current device's; null where it has none, as some virtual GPUs. Kept until the process ends.
cudaMemPool_t pool_of_device() {
  static std::mutex mutex;
  static auto& pools = *new std::map<int, cudaMemPool_t>;
  const int device = current_device_ordinal();
  const std::lock_guard lock(mutex);
  const auto found = pools.find(device);
  if (found != pools.end()) return found->second;
  return pools[device] = make_pool(device);
}

}  // namespace

void* allocate_device_memory(std::size_t bytes, void* stream) {
  const RelaxedCapture relaxed;
  const cudaMemPool_t pool = pool_of_device();
  void* data = nullptr;
  const cudaError_t status =
      pool == nullptr ? SCOREMOD_CUDART(cudaMalloc)(&data, bytes)
                      : SCOREMOD_CUDART(cudaMallocFromPoolAsync)(&data, bytes, pool, static_cast<cudaStream_t>(stream));
  if (status == cudaErrorMemoryAllocation) {
    SCOREMOD_CUDART(cudaGetLastError)();  // it would be reported again by the next launch
    fail_environment("the device has no ", bytes, " bytes of memory left; free some or use a smaller problem");
  }
  check_runtime(status, "cudaMallocFromPoolAsync");
  return data;
}

void release_device_memory(void* data, void* stream) noexcept {
  try {
    const RelaxedCapture relaxed;
    if (pool_of_device() == nullptr) {
      // A reset of the device has freed it.
      return retire([data, stream] {
        if (!is_gone(stream)) SCOREMOD_CUDART(cudaFree)(data);
      });
    }
    // A pool's memory outlives its stream's context. The host waits in a thread of its own.
    if (is_gone(stream)) return retire([data] { SCOREMOD_CUDART(cudaFree)(data); });
    check_runtime(SCOREMOD_CUDART(cudaFreeAsync)(data, static_cast<cudaStream_t>(stream)), "cudaFreeAsync");
  } catch (const Error&) {
    return;  // the driver is gone already, and with it the memory
  }
}

}  // namespace scoremod::backend::cuda
