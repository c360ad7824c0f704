#pragma once

#include <vector>

#include "backend/backend.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::cuda {

/// How engines that take tensors of 16 bits run problems with tensors of eight: as problem::stored_problem(), with
/// their tensors converted before and after, in the workspace. Exact but for the roundings of 16 bits that the engine
/// makes itself, and those of d_o and the gradients to bf16.
///
/// The problem to ask the engine for candidates of, in one direction.
compiler::CompiledProblem without_float8(const compiler::CompiledProblem& problem, Direction direction);

/// The engine's candidates of that, as candidates of the problem itself.
std::vector<Candidate> float8_candidates(const Backend& engine, const compiler::CompiledProblem& problem,
                                         const Task& task, const Target& target,
                                         std::vector<UnsupportedReason>& reasons);

}  // namespace scoremod::backend::cuda
