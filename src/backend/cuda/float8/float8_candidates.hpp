#pragma once

#include <vector>

#include "backend/backend.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::cuda {

/// How backends without FP8 run FP8 problems, and those with an FP8 KV cache: as problem::stored_problem(), with their
/// tensors converted before and after, in the workspace. Exact except the backend's own 16-bit roundings, and those of
/// d_o and the gradients to bf16.
///
/// The problem to ask the backend for candidates of, in one direction.
compiler::CompiledProblem without_float8(const compiler::CompiledProblem& problem, Direction direction);

/// The backend's candidates of that problem, as candidates of the FP8 problem itself.
std::vector<Candidate> float8_candidates(const Backend& engine, const compiler::CompiledProblem& problem,
                                         const Task& task, const Target& target,
                                         std::vector<UnsupportedReason>& reasons);

}  // namespace scoremod::backend::cuda
