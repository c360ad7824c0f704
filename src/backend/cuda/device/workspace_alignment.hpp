#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace scoremod::backend::cuda {

/// The alignment of CUDA's allocator, and of kernels' scratch memory.
inline constexpr std::size_t kWorkspaceAlignment = 256;

/// Bytes to ask for so that aligned() has `bytes` left, wherever the caller's memory begins (a multiple of 64).
inline std::size_t with_room_to_align(std::size_t bytes) {
  constexpr std::size_t kCallersAlignment = 64;
  return bytes == 0 ? 0 : bytes + kWorkspaceAlignment - kCallersAlignment;
}

/// The workspace from its first multiple of kWorkspaceAlignment on.
inline std::span<std::byte> aligned(std::span<std::byte> workspace) {
  const auto address = reinterpret_cast<std::uintptr_t>(workspace.data());
  const std::size_t skipped = (kWorkspaceAlignment - address % kWorkspaceAlignment) % kWorkspaceAlignment;
  return skipped > workspace.size() ? workspace : workspace.subspan(skipped);
}

}  // namespace scoremod::backend::cuda
