#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "scoremod/attention.hpp"
#include "scoremod/problem.hpp"

#include "backend/memory_space.hpp"

namespace scoremod::runtime {

/// One tensor of a call: its needs by the problem, and the memory that the caller gave. Every call makes a dozen, so
/// they own no memory.
struct TensorUse {
  std::string_view name;  ///< for messages
  const void* data = nullptr;
  std::size_t bytes = 0;  ///< given
  bool written = false;
  std::size_t element_bytes = 1;
  std::size_t alignment = 1;
  std::size_t rank = 0;
  std::array<std::int64_t, kMaxTableRank> shape{};
  std::array<std::int64_t, kMaxTableRank> strides{};  ///< in elements
  const char* before_name = "";                       ///< "gradient of ", for messages

  /// From the first element to the end of the last; 0 without elements.
  std::size_t needed_bytes() const;
};

/// Throws Error(kInvalidArgument) for the first tensor that is missing, too small, misaligned or not in this memory. It
/// also throws for the first written tensor that shares an element with another. Tensors whose elements interleave
/// without meeting (as in a packed QKV) pass.
void check_buffers(std::span<const TensorUse> tensors, const backend::MemorySpace& memory);

}  // namespace scoremod::runtime
