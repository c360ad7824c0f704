#pragma once

#include <memory>
#include <string>

#include "planner/prepare.hpp"

namespace scoremod::planner {

/// The backward that runs: dq, dk and dv by one plan, and the operands' gradients that a call asks for by the same plan
/// where it writes all of them, or by a plan of their own. Null where the answers hold no plan.
std::shared_ptr<const backend::BackwardPlan> compose_backward(const Prepared& prepared);

/// "'slopes'" or "'slopes', 'table'".
std::string names_of(const AttentionProblem& problem, const std::vector<std::uint32_t>& operands);

}  // namespace scoremod::planner
