#pragma once

#include <cstddef>
#include <functional>

#include "scoremod/problem.hpp"

namespace scoremod::backend::cpu {

/// Calls body(0) ... body(count - 1), each on a thread of its own (0 on the caller's), and waits for all. The body must
/// do its part of the work whatever the others do: when the system has no more threads, fewer calls are made. The first
/// exception is rethrown once all have returned.
void run_workers(int count, const std::function<void(int)>& body);

/// The bytes of a plan's workspace: `shared`, and `each` for every thread. Throws Error(kUnsupported) if no address
/// counts that many.
std::size_t workspace_bytes_of(const char* direction, const AttentionProblem& problem, std::size_t shared,
                               std::size_t each, int threads);

}  // namespace scoremod::backend::cpu
