#pragma once

#include <cstddef>
#include <span>

#include "scoremod/attention.hpp"

#include "backend/memory_space.hpp"

namespace scoremod::runtime {

inline constexpr std::size_t kWorkspaceAlignment = 64;

/// A call's scratch memory: the caller's, or its own for as long as it lives, in the order of the call's stream.
class Workspace {
 public:
  Workspace(const backend::MemorySpace& memory, Buffer given, std::size_t bytes, void* stream)
      : bytes_(bytes), data_(given.data) {
    if (data_ != nullptr || bytes == 0) return;
    own_ = backend::OwnedMemory(memory, bytes, stream);
    data_ = own_.data();
  }

  std::span<std::byte> span() const { return {static_cast<std::byte*>(data_), bytes_}; }

 private:
  std::size_t bytes_;
  void* data_;
  backend::OwnedMemory own_;
};

}  // namespace scoremod::runtime
