#pragma once

#include <string>
#include <vector>

#include "scoremod/explain.hpp"

#include "planner/plan_problem.hpp"

namespace scoremod::explaining {

/// The candidates of each task that a problem was planned as, of all backends that were asked. Empty without a device,
/// and on the host if there is nothing to verify.
std::vector<PatternExplanation> task_candidates(const planner::PlannedProblem& planned,
                                                const AttentionProblem& problem);

/// Why a backend does not run a direction, among those that it could; empty if it runs them all.
std::string why_not_chosen(const planner::PlannedProblem& planned, const backend::Backend& engine);

}  // namespace scoremod::explaining
