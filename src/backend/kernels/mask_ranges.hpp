#pragma once

#include <span>
#include <string>

#include "scoremod/problem.hpp"

namespace scoremod::backend::kernels {

/// mask_over() of attention_mask_ranges.cuh, for a mask that keeps what all of `terms` keep, which are bools of the
/// program and read neither the score nor the upstream gradient: it tells by intervals whether a box of elements is
/// kept whole, or not at all. That of a mask with many nodes never does.
std::string mask_ranges_function(const AttentionProblem& problem, const Program& program,
                                 std::span<const NodeId> terms);

}  // namespace scoremod::backend::kernels
