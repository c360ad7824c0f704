#pragma once

#include "backend/memory_space.hpp"

namespace scoremod::backend::cuda {

/// Memory of the device that is current on the calling thread. Tensors start at multiples of 16 bytes, the width of
/// cuDNN's reads.
const MemorySpace& cuda_memory();

/// Memory of the current device, for work on own_stream().
class DeviceMemory : public OwnedMemory {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(std::size_t bytes) : OwnedMemory(cuda_memory(), bytes) {}

  void* data() const { return OwnedMemory::data(); }
  void upload(const void* host, std::size_t bytes) { cuda_memory().copy_in(data(), host, bytes); }
  void download(void* host, std::size_t bytes) const { cuda_memory().copy_out(host, data(), bytes); }
};

}  // namespace scoremod::backend::cuda
