#pragma once

#include <span>
#include <vector>

#include "scoremod/problem.hpp"

#include "backend/cpu/strip.hpp"

namespace scoremod::backend::cpu {

/// How each operand of the problem's program lies in memory, in the order of the declarations, without data yet.
std::vector<OperandView> operand_views(const AttentionProblem& problem);

/// The views with this call's data.
std::vector<OperandView> with_data(const std::vector<OperandView>& views, std::span<const void* const> data);

}  // namespace scoremod::backend::cpu
