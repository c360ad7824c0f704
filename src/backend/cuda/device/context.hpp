#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

namespace scoremod::backend::cuda {

/// The CUDA calls of current_context(); each throws Error(kEnvironment) when the call fails.
struct ContextCalls {
  void* (*current)();                  ///< the calling thread's context; null when it has none
  void (*make_primary_current)();      ///< of the current device
  std::uint64_t (*id)(void* context);  ///< 0 where the context was destroyed, as by a reset of its device
};

/// The id of the calling thread's context. Without one, or after a reset of its device, it makes the primary context of
/// its device current. The driver never reuses an id within the process. So a new context at the address of a destroyed
/// one, or after a device's reset, has another id.
std::uint64_t current_context(const ContextCalls& calls);
std::uint64_t current_context();

/// The calling thread's; nothing where it has none.
std::optional<std::uint64_t> context_of_thread(const ContextCalls& calls);
std::optional<std::uint64_t> context_of_thread();

/// Whether a context is still there that current_context() gave. A reset of its device destroys it, and with it all
/// modules, streams and events in it. CUDA may crash at their old handles.
bool is_there(std::uint64_t context) noexcept;
/// Runs `body` with this context current; nothing where it is gone.
void within(std::uint64_t context, const std::function<void()>& body);
/// How many contexts current_context() has given so far. A new one may follow a reset, after which addresses that were
/// known to be a device's may be nobody's.
std::size_t contexts_seen() noexcept;

/// Throws unless the calling thread's context is this one, in which an attention was compiled.
void require_context(std::uint64_t context);

}  // namespace scoremod::backend::cuda
