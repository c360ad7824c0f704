#pragma once

namespace scoremod::backend::cuda {

/// The calling thread's stream, of the current context, for all that the library enqueues by itself: copies, trials,
/// measurements. It is a non-blocking one: the default stream would wait for the streams of the whole process, and
/// would end their captures. Threads have different ones. Throws Error(kEnvironment).
void* own_stream();

/// Whether a stream is one of these whose context is gone, so that CUDA must not see it any more.
bool is_gone(void* stream) noexcept;

/// Waits for the calling thread's work on it.
void wait_for_own_stream();

}  // namespace scoremod::backend::cuda
