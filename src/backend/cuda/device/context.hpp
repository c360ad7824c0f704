#pragma once

#include <cstdint>
#include <optional>

namespace scoremod::backend::cuda {

/// The CUDA calls of current_context(); each throws Error(kEnvironment) when the call fails.
struct ContextCalls {
  void* (*current)();              ///< the calling thread's context; null when it has none
  void (*make_primary_current)();  ///< of the current device
  std::uint64_t (*id)(void* context);
};

/// The id of the calling thread's context. Without one it makes the primary context of its device current. The driver
/// never reuses an id within the process. So a new context at the address of a destroyed one, or after a device's
/// reset, has another id.
std::uint64_t current_context(const ContextCalls& calls);
std::uint64_t current_context();

/// The calling thread's; nothing where it has none.
std::optional<std::uint64_t> context_of_thread(const ContextCalls& calls);
std::optional<std::uint64_t> context_of_thread();

}  // namespace scoremod::backend::cuda
