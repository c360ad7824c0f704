#pragma once

#include <vector>

#include "scoremod/inputs.hpp"

namespace scoremod::problem {

/// The operands that random_inputs() makes, without its other tensors. The problem is valid and has its implied
/// operands.
std::vector<OwnedOperand> random_operands(const AttentionProblem& problem, const RandomInputOptions& options);

}  // namespace scoremod::problem
