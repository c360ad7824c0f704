#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/reference/interpreter.hpp"
#include "base/element.hpp"
#include "problem/strided_tensor.hpp"

namespace scoremod::backend::reference {

/// Reads a tensor into dense order.
template <class Real>
std::vector<Real> load_dense(const problem::StridedTensor& tensor, const void* data) {
  std::vector<Real> values;
  values.reserve(static_cast<std::size_t>(tensor.elements()));
  tensor.for_each_offset(
      [&](std::int64_t, std::int64_t offset) { values.push_back(load_element<Real>(data, tensor.dtype, offset)); });
  return values;
}

/// The same of q, k, v or o, in the order batch, heads, sequence, dim.
template <class Real>
std::vector<Real> load_dense(const AttentionProblem& problem, problem::TensorRole role, const void* data) {
  return load_dense<Real>(problem::tensor_of(problem::to_string(role), problem, role), data);
}

/// Writes a dense tensor where the problem says that it lies, rounded to its dtype.
template <class Real>
void store_dense(const AttentionProblem& problem, problem::TensorRole role, const std::vector<Real>& values,
                 void* data) {
  const auto tensor = problem::tensor_of(problem::to_string(role), problem, role);
  tensor.for_each_offset([&](std::int64_t number, std::int64_t offset) {
    store_element(data, tensor.dtype, offset, values[static_cast<std::size_t>(number)]);
  });
}

}  // namespace scoremod::backend::reference
