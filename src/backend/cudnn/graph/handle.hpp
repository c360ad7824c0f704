#pragma once

#include <mutex>

namespace scoremod::backend::cudnn {

/// Builds, loads and destructions must exclude each other. A thread that destroys a descriptor while another one
/// compiles a kernel inside cuDNN can deadlock. Builds destroy temporary descriptors all along, so letting them run
/// side by side would not be enough. Plans that are built may run meanwhile.
std::mutex& construction_turns();

/// The calling thread's cuDNN handle of its current CUDA context, which another thread gets when this one ends. One
/// policy for the whole library: plans never make handles of their own. For execution only.
void* thread_handle();

/// The handle, set to enqueue on a stream; null is the default stream.
void* thread_handle(void* stream);

/// The handle with which plans are built, loaded and described in the current context. There is one for the whole
/// process, never destroyed, because a plan refers to its handle while it lives, and threads may end before. Only a
/// holder of construction_turns() may use it.
void* builder_handle();

}  // namespace scoremod::backend::cudnn
