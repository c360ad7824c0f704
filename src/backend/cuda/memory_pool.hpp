#pragma once

#include <cstddef>

namespace scoremod::backend::cuda {

/// Memory of the current device for what is enqueued on `stream` from now on. It comes from a pool of the library's own
/// and is ordered by streams: cudaMalloc() and cudaFree() end other threads' captures and wait for the whole device.
/// Throws Error(kEnvironment) when the device has not enough.
void* allocate_device_memory(std::size_t bytes, void* stream);

/// Frees it once what was enqueued on `stream` before is done.
void release_device_memory(void* data, void* stream) noexcept;

}  // namespace scoremod::backend::cuda
