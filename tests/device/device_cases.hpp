#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scoremod/problem.hpp"

#include "backend/cuda/compute/compute_kernel.hpp"
#include "check/check_case.hpp"

namespace scoremod::test {

/// The problem of a ready-made modifier, at one of several shapes, chosen by number. They have grouped heads, odd
/// lengths, more queries than keys and the reverse, one query and every layout. With a backward.
checking::CheckCase zoo_problem(const std::string& name, int shape, DType dtype);
inline constexpr int kZooShapes = 4;

/// Problems with an operand along one of all sets of axes (bit i of `axes`: axis i). It is read in a way whose adjoint
/// needs the score and the operand. They have grouped heads, more queries than keys, padded strides and, if `windowed`,
/// a mask and index offsets.
checking::CheckCase axes_problem(int axes, bool windowed);
inline constexpr int kAxesProblems = 1 << kAxisCount;

/// Problems with lengths beyond one block of queries and one of keys of the pass of operand gradients.
checking::CheckCase long_problem(int number);
inline constexpr int kLongProblems = 4;

/// Problems with few rows or keys, in which one weight of a row is nearly 1. Their gradients are small compared with
/// the effect of o's rounding. One has keys beyond a block.
checking::CheckCase few_rows_problem(int number);
inline constexpr int kFewRowsProblems = 4;

/// Problems at the size at which the pass is timed: batch 4, heads 16, sequence 4096, head dim 128, bf16.
std::vector<checking::CheckCase> timed_problems();

/// Nodes of the program that depend neither on the score nor on the upstream gradient, as tensors over the axes that
/// they vary along.
std::vector<backend::cuda::NodeTensor> score_free_tensors(const Program& program);

}  // namespace scoremod::test
