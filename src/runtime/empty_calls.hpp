#pragma once

#include "scoremod/call.hpp"
#include "scoremod/problem.hpp"

#include "backend/memory_space.hpp"

namespace scoremod::runtime {

// Calls of a problem that is empty (problem/empty_sizes.hpp), which no backend runs.

/// Checks the arguments and writes rows without a key: o 0, LSE -inf or the sink. Throws Error: kInvalidArgument as
/// check_call() does, kUnsupported where a device would have to write.
void run_empty(const AttentionProblem& problem, const ForwardArgs& args, Buffer workspace,
               const backend::MemorySpace& memory);
/// Checks the arguments and writes gradients of 0. Throws as the forward does, and kUnsupported for the gradient of a
/// sink whose o covers more keys than the problem's.
void run_empty(const AttentionProblem& problem, const BackwardArgs& args, Buffer workspace,
               const backend::MemorySpace& memory);

}  // namespace scoremod::runtime
