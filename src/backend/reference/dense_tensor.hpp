#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/reference/interpreter.hpp"
#include "base/element.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::reference {

/// Calls body(dense index, offset in elements) for every element of q, k, v or o, in the order batch, heads, sequence,
/// dim.
template <class Body>
void for_each_element(const AttentionProblem& problem, problem::TensorRole role, const Body& body) {
  const problem::TensorShape shape = problem::shape_of(problem, role);
  const Strides strides = problem::strides_of(problem, role);
  std::int64_t index = 0;
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      for (std::int64_t s = 0; s < shape.sequence; ++s) {
        for (std::int64_t d = 0; d < shape.dim; ++d, ++index) {
          body(index, b * strides.batch + h * strides.head + s * strides.sequence + d * strides.dim);
        }
      }
    }
  }
}

/// Reads a tensor into dense order.
template <class Real>
std::vector<Real> load_dense(const AttentionProblem& problem, problem::TensorRole role, const void* data) {
  std::vector<Real> values;
  for_each_element(problem, role, [&](std::int64_t, std::int64_t offset) {
    values.push_back(load_element<Real>(data, problem.dtype, offset));
  });
  return values;
}

/// Writes a dense tensor where the problem says that it lies, rounded to its dtype.
template <class Real>
void store_dense(const AttentionProblem& problem, problem::TensorRole role, const std::vector<Real>& values,
                 void* data) {
  for_each_element(problem, role, [&](std::int64_t index, std::int64_t offset) {
    store_element(data, problem.dtype, offset, values[static_cast<std::size_t>(index)]);
  });
}

}  // namespace scoremod::backend::reference
