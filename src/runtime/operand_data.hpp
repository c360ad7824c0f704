#pragma once

#include <span>

#include "scoremod/problem.hpp"

#include "backend/memory_space.hpp"

namespace scoremod::runtime {

/// Checks a call's lengths, offsets and page tables (in checked buffers, in the order of the declarations). Throws
/// Error(kInvalidArgument) before anything is written. Values in device memory are not read: kernels clamp them.
void check_operand_data(const AttentionProblem& problem, std::span<const void* const> operands,
                        const backend::MemorySpace& memory);

}  // namespace scoremod::runtime
