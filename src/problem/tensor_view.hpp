#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "scoremod/problem.hpp"

namespace scoremod::problem {

/// The four tensors that every problem has; gradients lie as their tensors do.
enum class TensorRole : std::uint8_t { kQ, kK, kV, kO };
const char* to_string(TensorRole role);

/// Logical sizes of a tensor, in the order batch, heads, sequence, dim.
struct TensorShape {
  std::int64_t batch = 0, heads = 0, sequence = 0, dim = 0;
};

TensorShape shape_of(const AttentionProblem& problem, TensorRole role);
/// The explicit strides, or those of the layout.
Strides strides_of(const AttentionProblem& problem, TensorRole role);
/// Bytes from the first element to the end of the last. The problem must be valid.
std::size_t bytes_of(const AttentionProblem& problem, TensorRole role);

/// The spec that a program operand is bound to; throws Error(kInvalidArgument) when it is missing.
const OperandSpec& spec_of(const AttentionProblem& problem, std::uint32_t operand);
/// Numbers of the operands that have a gradient, in ascending order.
std::vector<std::uint32_t> operands_with_gradient(const AttentionProblem& problem);
/// What the program and the problem's sizes say of an operand: dense, in its type's own dtype (f32, i32 or bool), with
/// the sizes along its axes. A table's shape stays empty.
OperandSpec default_spec(const AttentionProblem& problem, const OperandDecl& decl);
/// In elements, one per dimension.
std::array<std::int64_t, kMaxTableRank> strides_of(const OperandSpec& spec);
std::size_t bytes_of(const OperandSpec& spec);

}  // namespace scoremod::problem
