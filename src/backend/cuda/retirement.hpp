#pragma once

#include <functional>

namespace scoremod::backend::cuda {

/// Frees what a plan held on a device. CUDA waits for the whole device before it unloads a kernel, which may be running
/// on a caller's stream, so that a thread of the process waits in place of the caller. Jobs run in the order in which
/// they came, and allow other threads to capture. Those that are left when the process ends never run.
void retire(std::function<void()> job) noexcept;

}  // namespace scoremod::backend::cuda
