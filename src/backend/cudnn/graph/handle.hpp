#pragma once

#include <mutex>

namespace scoremod::backend::cudnn {

/// Builds, loads and destructions take turns: a thread that destroys a descriptor while another one compiles a kernel
/// inside cuDNN waits for a lock that the other may hold for ever. Temporary descriptors die all along a build, so that
/// letting builds run side by side would not be enough. A plan that was built before runs meanwhile.
std::mutex& construction_turns();

/// The calling thread's cuDNN handle of its current CUDA context, which another thread gets when this one ends. One
/// policy for the whole library: plans never make handles of their own. For execution only.
void* thread_handle();

/// The same handle, set to enqueue on a stream; null is the default stream.
void* thread_handle(void* stream);

/// The handle with which plans are built, loaded and described in the current context: one for the whole process, never
/// destroyed, because a plan refers to the handle that it was built with for as long as it lives, and threads end
/// before. Only what holds construction_turns() uses it.
void* builder_handle();

}  // namespace scoremod::backend::cudnn
