#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "base/byte_count.hpp"

namespace scoremod::backend::cpu {

/// Hands out parts of a workspace, each aligned to 64 bytes. Without memory it only measures, so that one function both
/// says how much is needed and lays it out. The measured size does not wrap: kMaxBytes stands for too much.
class Scratch {
 public:
  Scratch() = default;
  explicit Scratch(std::span<std::byte> memory) : base_(memory.data()) {}

  template <class T>
  T* take(std::size_t count) {
    constexpr std::size_t kAlignment = 64;
    T* part = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ = add_bytes(used_, align_bytes(multiply_bytes(count, sizeof(T)), kAlignment));
    return part;
  }

  std::size_t used() const { return used_; }

 private:
  std::byte* base_ = nullptr;
  std::size_t used_ = 0;
};

}  // namespace scoremod::backend::cpu
