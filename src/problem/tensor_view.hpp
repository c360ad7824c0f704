#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "scoremod/problem.hpp"

namespace scoremod::problem {

/// The four tensors that every problem has, their gradients, and the LSE, which max_logit lies as.
enum class TensorRole : std::uint8_t { kQ, kK, kV, kO, kDO, kDQ, kDK, kDV, kLse };
const char* to_string(TensorRole role);

/// Whether a tensor has a row for each query, and not for each key.
bool is_query_like(TensorRole role);
/// The tensor whose gradient this is, or itself.
TensorRole primal_of(TensorRole role);

/// Sizes of a tensor, in the order batch, heads, sequence, dim.
struct TensorShape {
  std::int64_t batch = 0, heads = 0, sequence = 0, dim = 0;
};

/// The shape that programs see; the LSE's dim is 1.
TensorShape shape_of(const AttentionProblem& problem, TensorRole role);
/// The shape in memory: one batch of all tokens if the tensor is varlen, all pages if it is a paged KV cache.
TensorShape memory_shape_of(const AttentionProblem& problem, TensorRole role);
const TensorLayout& layout_of(const AttentionProblem& problem, TensorRole role);
DType dtype_of(const AttentionProblem& problem, TensorRole role);
/// The dtype that weights and gradients of scores are rounded to for MMA: that of q, k and v. For FP8 it is bf16, which
/// has every FP8 number.
DType product_dtype(const AttentionProblem& problem);
/// Whether k and v are FP8, and perhaps q, so that the problem has scales of tensors.
bool has_float8_keys(const AttentionProblem& problem);
/// The explicit strides, or those of the layout, in memory.
Strides strides_of(const AttentionProblem& problem, TensorRole role);
/// Bytes from the first element to the end of the last. The problem must be valid.
std::size_t bytes_of(const AttentionProblem& problem, TensorRole role);

/// The spec that a program operand is bound to; throws Error(kInvalidArgument) when it is missing.
const OperandSpec& spec_of(const AttentionProblem& problem, std::uint32_t operand);
/// Numbers of the operands that have a gradient, in ascending order.
std::vector<std::uint32_t> operands_with_gradient(const AttentionProblem& problem);
/// An operand's default spec: dense, in its type's own dtype (f32, i32 or bool), with the problem's sizes along its
/// axes. A table's shape stays empty.
OperandSpec default_spec(const AttentionProblem& problem, const OperandDecl& decl);
/// In elements, one per dimension.
std::array<std::int64_t, kMaxTableRank> strides_of(const OperandSpec& spec);
std::size_t bytes_of(const OperandSpec& spec);

}  // namespace scoremod::problem
