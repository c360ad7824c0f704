#pragma once

#include <memory>
#include <string>

#include "planner/prepare.hpp"

namespace scoremod::planner {

/// The backward that runs. One plan makes dq, dk and dv. It also makes the operand gradients of a call if it writes all
/// of them; otherwise another plan does. Null if the answers hold no plan.
std::shared_ptr<const backend::BackwardPlan> compose_backward(const Prepared& prepared);

/// "'slopes'" or "'slopes', 'table'".
std::string names_of(const AttentionProblem& problem, const std::vector<std::uint32_t>& operands);

}  // namespace scoremod::planner
