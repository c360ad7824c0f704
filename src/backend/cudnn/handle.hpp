#pragma once

namespace scoremod::backend::cudnn {

/// The calling thread's cuDNN handle of its current device: made at first use, destroyed with the thread. One policy
/// for the whole library: plans never make handles of their own.
void* thread_handle();

}  // namespace scoremod::backend::cudnn
