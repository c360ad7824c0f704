#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scoremod/problem.hpp"

#include "backend/cuda/compute_kernel.hpp"

namespace scoremod::test {

/// The problem of a ready-made modifier, at one of several shapes, chosen by number: grouped heads, odd lengths, more
/// queries than keys and the reverse, one query, every layout. With a backward.
AttentionProblem zoo_problem(const std::string& name, int shape, DType dtype);
inline constexpr int kZooShapes = 4;

/// The operands that have a gradient.
std::vector<std::uint32_t> float_operands(const AttentionProblem& problem);

/// Nodes of the program that depend neither on the score nor on the upstream gradient, as tensors over the axes that
/// they vary along.
std::vector<backend::cuda::NodeTensor> score_free_tensors(const Program& program);

}  // namespace scoremod::test
