#pragma once

#include <cstddef>

namespace scoremod::backend::cuda {

/// Memory of the current device for work that is enqueued on `stream` from now on. It comes from the library's own
/// stream-ordered pool. cudaMalloc() and cudaFree() would end other threads' captures and wait for the whole device.
/// Throws Error(kEnvironment) if the device has not enough.
void* allocate_device_memory(std::size_t bytes, void* stream);

/// Frees it once the earlier work on `stream` is done.
void release_device_memory(void* data, void* stream) noexcept;

}  // namespace scoremod::backend::cuda
