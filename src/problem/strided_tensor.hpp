#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "problem/row_addressing.hpp"

namespace scoremod::problem {

/// The shape and strides of one tensor of a problem in memory.
struct StridedTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  ///< in elements
  /// The first elements of a varlen or paged tensor's rows, by their numbers in dense order; -1 for rows that do not
  /// exist.
  std::vector<std::int64_t> rows = {};

  std::int64_t elements() const {
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) count *= extent;
    return count;
  }

  /// From the first element to the end of the last.
  std::size_t bytes() const {
    std::int64_t last = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) last += (shape[d] - 1) * strides[d];
    return static_cast<std::size_t>(last + 1) * size_of(dtype);
  }

  /// Calls body(number in dense order, offset in elements) for every element that is there.
  template <class Body>
  void for_each_offset(const Body& body) const {
    if (!rows.empty()) return for_each_placed(body);
    const std::int64_t count = elements();
    std::vector<std::int64_t> index(shape.size(), 0);
    std::int64_t offset = 0;
    for (std::int64_t number = 0; number < count; ++number) {
      body(number, offset);
      for (std::size_t d = shape.size(); d-- > 0;) {
        if (index[d] + 1 < shape[d]) {
          ++index[d];
          offset += strides[d];
          break;
        }
        // The stride of a dimension of size 1 may be any number, which is never added.
        offset -= strides[d] * index[d];
        index[d] = 0;
      }
    }
  }

 private:
  template <class Body>
  void for_each_placed(const Body& body) const {
    const std::int64_t dim = shape.back();
    for (std::size_t row = 0; row < rows.size(); ++row) {
      for (std::int64_t d = 0; d < dim && rows[row] >= 0; ++d)
        body(static_cast<std::int64_t>(row) * dim + d, rows[row] + d * strides.back());
    }
  }
};

/// A tensor's memory, [batch, heads, sequence, dim]: one batch of all tokens if it is varlen, all pages if it is a
/// paged KV cache.
inline StridedTensor tensor_of(const std::string& name, const AttentionProblem& problem, TensorRole role) {
  const TensorShape shape = memory_shape_of(problem, role);
  const Strides strides = strides_of(problem, role);
  return {name,
          dtype_of(problem, role),
          {shape.batch, shape.heads, shape.sequence, shape.dim},
          {strides.batch, strides.head, strides.sequence, strides.dim}};
}

inline StridedTensor tensor_of(const std::string& name, const OperandSpec& spec) {
  const auto strides = strides_of(spec);
  return {name,
          spec.dtype,
          spec.shape,
          {strides.begin(), strides.begin() + static_cast<std::ptrdiff_t>(spec.shape.size())}};
}

/// The tensor as programs see it, [batch, heads, sequence, dim]. A call's operands place it (on the host, in the order
/// of the declarations). The problem has its implied operands.
inline StridedTensor placed_tensor(const AttentionProblem& problem, TensorRole role,
                                   std::span<const void* const> operands) {
  const RowAddressing addressing(problem, role);
  StridedTensor tensor = tensor_of(to_string(role), problem, role);
  if (addressing.is_dense()) return tensor;
  const TensorShape& shape = addressing.shape();
  tensor.shape = {shape.batch, shape.heads, shape.sequence, shape.dim};
  tensor.rows.assign(static_cast<std::size_t>(shape.batch * shape.heads * shape.sequence), -1);
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    const std::int64_t positions = addressing.positions(b, operands);
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      const HeadRows rows = addressing.rows(b, h, operands);
      const std::int64_t first = (b * shape.heads + h) * shape.sequence;
      for (std::int64_t i = 0; i < positions; ++i) tensor.rows[static_cast<std::size_t>(first + i)] = rows.row(i);
    }
  }
  return tensor;
}

/// The LSE of a problem: f32 [batch, heads_q, seq_q], dense; [tokens_q, heads_q] if queries are varlen.
inline StridedTensor lse_tensor(const AttentionProblem& problem) {
  if (problem.tokens_q) return {"lse", DType::kF32, {*problem.tokens_q, problem.heads_q}, {problem.heads_q, 1}};
  return {"lse",
          DType::kF32,
          {problem.batch, problem.heads_q, problem.seq_q},
          {problem.heads_q * problem.seq_q, problem.seq_q, 1}};
}

}  // namespace scoremod::problem
