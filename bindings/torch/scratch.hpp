#pragma once

#include <cstddef>

#include "python.hpp"

namespace scoremod::torch_binding {

/// A workspace: a tensor of PyTorch's allocator, and an aligned address in it.
struct Scratch {
  Ref tensor;
  void* address = nullptr;
};

/// Workspaces of up to so many bytes are kept for the next call on their stream: PyTorch's allocator takes as long as
/// the rest of a call.
inline constexpr std::size_t kKeptScratch = std::size_t{1} << 20;

/// A new one. make: (bytes) -> (tensor, address).
Scratch new_scratch(const Ref& make, std::size_t bytes);

/// One that no call is being made with, or a new one of kKeptScratch bytes. Calls on one stream run in turn, and a
/// thread that makes a call has its own.
Scratch take_scratch(int device, void* stream, const Ref& make);
void keep_scratch(int device, void* stream, Scratch scratch);

}  // namespace scoremod::torch_binding
