#pragma once

#include <span>

#include "scoremod/problem.hpp"

#include "backend/memory_space.hpp"

namespace scoremod::runtime {

/// Checks what a call's operands (of checked buffers, in the order of the declarations) say of where its sequences lie
/// and end: lengths, offsets and page tables. Throws Error(kInvalidArgument) before anything is written. In a device's
/// memory they are not read: engines there clamp what they read.
void check_operand_data(const AttentionProblem& problem, std::span<const void* const> operands,
                        const backend::MemorySpace& memory);

}  // namespace scoremod::runtime
