#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "problem/row_addressing.hpp"

namespace scoremod::problem {

/// What one tensor of a problem looks like in memory.
struct StridedTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  ///< in elements

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

  /// Calls body(number in dense order, offset in elements) for every element.
  template <class Body>
  void for_each_offset(const Body& body) const {
    const std::int64_t count = elements();
    std::vector<std::int64_t> index(shape.size(), 0);
    std::int64_t offset = 0;
    for (std::int64_t number = 0; number < count; ++number) {
      body(number, offset);
      for (std::size_t d = shape.size(); d-- > 0;) {
        offset += strides[d];
        if (++index[d] < shape[d]) break;
        offset -= strides[d] * shape[d];
        index[d] = 0;
      }
    }
  }
};

inline StridedTensor tensor_of(const std::string& name, const AttentionProblem& problem, TensorRole role) {
  const RowAddressing rows(problem, role);
  const TensorShape& shape = rows.shape();
  const Strides& strides = rows.strides();
  return {name,
          problem.dtype,
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

/// The LSE of a problem: f32 [batch, heads_q, seq_q], dense.
inline StridedTensor lse_tensor(const AttentionProblem& problem) {
  return {"lse",
          DType::kF32,
          {problem.batch, problem.heads_q, problem.seq_q},
          {problem.heads_q * problem.seq_q, problem.seq_q, 1}};
}

}  // namespace scoremod::problem
