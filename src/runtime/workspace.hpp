#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <span>

#include "scoremod/attention.hpp"

namespace scoremod::runtime {

inline constexpr std::size_t kWorkspaceAlignment = 64;

/// A call's scratch memory: the caller's, or its own for as long as it lives.
class Workspace {
 public:
  Workspace(Buffer given, std::size_t bytes) : bytes_(bytes), data_(given.data) {
    if (data_ != nullptr || bytes == 0) return;
    own_.reset(::operator new (bytes, std::align_val_t{kWorkspaceAlignment}));
    data_ = own_.get();
  }

  std::span<std::byte> span() const { return {static_cast<std::byte*>(data_), bytes_}; }

 private:
  struct Release {
    void operator()(void* data) const { ::operator delete (data, std::align_val_t{kWorkspaceAlignment}); }
  };
  std::size_t bytes_;
  void* data_;
  std::unique_ptr<void, Release> own_;
};

}  // namespace scoremod::runtime
