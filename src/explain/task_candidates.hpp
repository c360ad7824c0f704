#pragma once

#include <string>
#include <vector>

#include "scoremod/explain.hpp"

#include "planner/plan_problem.hpp"

namespace scoremod::explaining {

/// The candidates of each task that a problem was planned as, of all engines that were asked. Empty where there is no
/// device, and on the host where there is nothing to verify.
std::vector<PatternExplanation> task_candidates(const planner::PlannedProblem& planned,
                                                const AttentionProblem& problem);

/// Why an engine does not run a direction, of those that it could; empty where it runs them all.
std::string why_not_chosen(const planner::PlannedProblem& planned, const backend::Backend& engine);

}  // namespace scoremod::explaining
