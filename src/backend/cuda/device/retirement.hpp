#pragma once

#include <functional>

namespace scoremod::backend::cuda {

/// Frees a plan's objects on a device. CUDA waits for the whole device before it unloads a kernel, which may be running
/// on a caller's stream. So a thread of the process waits in place of the caller. Jobs run in order, and allow other
/// threads to capture. Jobs that are left when the process ends run then.
void retire(std::function<void()> job) noexcept;

}  // namespace scoremod::backend::cuda
