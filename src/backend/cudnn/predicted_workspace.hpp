#pragma once

#include <cstddef>
#include <string>

#include "scoremod/problem.hpp"

namespace scoremod::backend::cudnn {

/// What cuDNN's plan of a deterministic backward needs of device memory, in bytes, known before anything is built: at
/// most 512 bytes less than what the plan says (docs/plans.md has the formula and what it was held to).
/// `compute_capability` is 90 for sm_90.
std::size_t predicted_deterministic_workspace(const AttentionProblem& problem, int compute_capability);

/// The most that a direction may need: the environment variable SCOREMOD_MAX_WORKSPACE, in bytes; 8 GiB without it.
/// Throws Error(kInvalidArgument) for another value of the variable.
std::size_t workspace_limit();

/// Why a direction that needs this many bytes is refused, with that number; empty where it is within the limit.
std::string workspace_objection(const AttentionProblem& problem, const char* direction, std::size_t bytes);

}  // namespace scoremod::backend::cudnn
