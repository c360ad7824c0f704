#pragma once

#include <span>
#include <string>

#include "scoremod/problem.hpp"

namespace scoremod::backend::kernels {

/// mask_over() of mask/block_mask.cuh, for a mask that keeps what all of `terms` keep. Terms are bools of the
/// program that read neither the score nor the upstream gradient. It tells by intervals whether a box of elements is
/// kept whole, or not at all; for a mask with many nodes it never does.
std::string mask_ranges_function(const AttentionProblem& problem, const Program& program,
                                 std::span<const NodeId> terms);

}  // namespace scoremod::backend::kernels
