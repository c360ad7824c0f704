#pragma once

#include <utility>

#include "fake_cuda/state.hpp"

// Helpers of the runtime's functions.

namespace scoremod::test::fake_cuda {

/// The runtime keeps a thread's last error until it is asked for it.
inline cudaError_t result(const Call& call) {
  if (call.code() != 0) thread_state().last_error = call.code();
  return static_cast<cudaError_t>(call.code());
}

template <class Thing, class Handle>
void keep(std::set<Thing*>& things, Thing made, Handle* handle) {
  auto* const thing = new Thing(std::move(made));
  things.insert(thing);
  *handle = reinterpret_cast<Handle>(thing);
}

/// An error of earlier work, which a call that destroys something returns, leaves it destroyed.
template <class Thing>
void destroy(Call& call, std::set<Thing*>& things, void* handle, const char* what) {
  if (!is_known(call, things, handle, what)) return;
  things.erase(static_cast<Thing*>(handle));
  delete static_cast<Thing*>(handle);
}

/// Null for the default stream, and for a handle that is refused.
inline Stream* stream_of(Call& call, cudaStream_t handle) {
  if (handle == nullptr || !is_known(call, state().streams, handle, "a stream")) return nullptr;
  return reinterpret_cast<Stream*>(handle);
}

/// Work for a stream whose capture an error has ended.
inline void fail_if_broken(Call& call, const Stream* stream) {
  if (stream != nullptr && stream->captured != nullptr && stream->broken) call.fail(cudaErrorStreamCaptureInvalidated);
}

/// Waiting for a stream that captures, or allocating on it, ends its capture.
inline void must_not_capture(Call& call, const Stream* stream) {
  if (stream != nullptr && stream->captured != nullptr)
    call.refuse(cudaErrorStreamCaptureUnsupported, "the stream captures");
}

}  // namespace scoremod::test::fake_cuda
