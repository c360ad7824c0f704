// The runtime's functions for devices and their memory: those that the library and its tests call.
#include "fake_cuda/runtime.hpp"

#include <bit>
#include <cstring>
#include <optional>

namespace scoremod::test::fake_cuda {
namespace {

void allocate(Call& call, void** data, std::size_t bytes, int device, bool of_pool) {
  call.bind_device();
  // As a device without memory: no violation.
  if (call.fails()) return;
  *data = bytes == 0 ? nullptr : std::bit_cast<void*>(state().allocate(device, bytes, of_pool));
}

void release(Call& call, void* data) {
  call.bind_device();
  if (data == nullptr) return;
  if (state().allocations.erase(reinterpret_cast<std::uint64_t>(data)) == 0)
    call.refuse(cudaErrorInvalidValue, "expected the start of an allocation, found another address");
}

/// The host's memory behind bytes of a device; null, and refused, where they are not all allocated.
std::byte* contents(Call& call, const void* data, std::size_t bytes) {
  const auto address = reinterpret_cast<std::uint64_t>(data);
  if (state().allocation_of(address, bytes) != nullptr) return state().contents(address);
  call.refuse(cudaErrorInvalidValue, "the ", bytes, " bytes are not all of an allocation");
  return nullptr;
}

/// The part of a description that an attribute is.
std::optional<int> attribute_of(int device, cudaDeviceAttr attribute) {
  const auto number = [&](const char* property) { return static_cast<int>(described(device, property)); };
  switch (attribute) {
    // 9.0 is written as 900, 8.9 as 890.
    case cudaDevAttrComputeCapabilityMajor: return number("deviceVer") / 100;
    case cudaDevAttrComputeCapabilityMinor: return number("deviceVer") / 10 % 10;
    case cudaDevAttrMultiProcessorCount: return number("multiProcessorCount");
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return number("maxSharedMemoryPerBlockOptin");
    case cudaDevAttrL2CacheSize: return number("l2CacheSize");
    case cudaDevAttrClockRate: return number("smClockRateKHz");
    case cudaDevAttrMemoryClockRate: return number("memClockRateKHz");
    case cudaDevAttrGlobalMemoryBusWidth: return number("memoryBusWidth");
    case cudaDevAttrMemoryPoolsSupported: return 1;
    default: return std::nullopt;
  }
}

}  // namespace

extern "C" {

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = FAKE_CUDA_RUNTIME_VERSION;
  return cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t error) { return text_of(error); }

cudaError_t cudaGetLastError() { return static_cast<cudaError_t>(std::exchange(thread_state().last_error, 0)); }

cudaError_t cudaGetDeviceCount(int* count) {
  Call call("cudaGetDeviceCount");
  if (!call.fails()) *count = static_cast<int>(state().devices.size());
  return result(call);
}

cudaError_t cudaGetDevice(int* device) {
  Call call("cudaGetDevice", Call::Fails::kWhenNothingWorks);
  if (!call.fails())
    *device = thread_state().contexts.empty() ? thread_state().device : thread_state().contexts.back()->device;
  return result(call);
}

cudaError_t cudaSetDevice(int device) {
  Call call("cudaSetDevice");
  if (device < 0 || static_cast<std::size_t>(device) >= state().devices.size())
    call.refuse(cudaErrorInvalidDevice, "device ", device);
  if (call.fails()) return result(call);
  state().is_initialized = true;
  thread_state().device = device;
  thread_state().contexts = {&state().contexts[static_cast<std::size_t>(device)]};
  state().make_there(*thread_state().contexts.back());
  return result(call);
}

cudaError_t cudaDeviceSynchronize() {
  Call call("cudaDeviceSynchronize");
  call.bind_device();
  call.end_captures();
  ++state().waits;
  return result(call);
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  Call call("cudaDeviceGetAttribute");
  const std::optional<int> found = attribute_of(device, attribute);
  if (!found)
    call.refuse(cudaErrorInvalidValue, "attribute ", static_cast<int>(attribute), ", which the fake does not know");
  if (!call.fails()) *value = *found;
  state().is_initialized = true;
  return result(call);
}

cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  Call call("cudaMalloc");
  call.must_not_meet_captures();
  call.bind_device();
  allocate(call, data, bytes, thread_state().contexts.back()->device, false);
  return result(call);
}

cudaError_t cudaFree(void* data) {
  Call call("cudaFree");
  call.must_not_meet_captures();
  release(call, data);
  return result(call);
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  Call call("cudaMemPoolCreate");
  if (!call.fails()) keep(state().pools, int{properties->location.id}, pool);
  return result(call);
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  Call call("cudaMemPoolDestroy");
  destroy(call, state().pools, pool, "a pool");
  return result(call);
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr, void*) {
  Call call("cudaMemPoolSetAttribute");
  is_known(call, state().pools, pool, "a pool");
  return result(call);
}

cudaError_t cudaMallocFromPoolAsync(void** data, std::size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
  Call call("cudaMallocFromPoolAsync");
  must_not_capture(call, stream_of(call, stream));
  if (is_known(call, state().pools, pool, "a pool")) allocate(call, data, bytes, *reinterpret_cast<int*>(pool), true);
  return result(call);
}

cudaError_t cudaFreeAsync(void* data, cudaStream_t stream) {
  Call call("cudaFreeAsync");
  must_not_capture(call, stream_of(call, stream));
  release(call, data);
  return result(call);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  Call call("cudaMemcpyAsync");
  must_not_capture(call, stream_of(call, stream));
  if (kind != cudaMemcpyHostToDevice && kind != cudaMemcpyDeviceToHost)
    call.refuse(cudaErrorInvalidMemcpyDirection, "a kind that the fake does not know");
  if (call.fails() || bytes == 0) return result(call);
  std::byte* const own = contents(call, kind == cudaMemcpyHostToDevice ? to : from, bytes);
  if (own == nullptr) return result(call);
  if (kind == cudaMemcpyDeviceToHost)
    std::memcpy(to, own, bytes);
  else
    std::memcpy(own, from, bytes);
  return result(call);
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t handle) {
  Call call("cudaMemsetAsync");
  const Stream* const stream = stream_of(call, handle);
  fail_if_broken(call, stream);
  if (call.fails() || bytes == 0) return result(call);
  std::byte* const own = contents(call, to, bytes);
  if (own != nullptr && (stream == nullptr || stream->captured == nullptr)) std::memset(own, value, bytes);
  return result(call);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  Call call("cudaPointerGetAttributes");
  if (call.fails()) return result(call);
  *attributes = {};
  attributes->type = cudaMemoryTypeUnregistered;
  if (const Allocation* found = state().allocation_of(reinterpret_cast<std::uint64_t>(data), 0)) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->device = found->device;
  }
  return result(call);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  const Call call("cudaThreadExchangeStreamCaptureMode", Call::Fails::kWhenNothingWorks);
  if (!call.fails()) std::swap(thread_state().capture_mode, *mode);
  return result(call);
}

}  // extern "C"

}  // namespace scoremod::test::fake_cuda
