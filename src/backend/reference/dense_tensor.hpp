#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/reference/interpreter.hpp"
#include "base/element.hpp"
#include "problem/block_scales.hpp"
#include "problem/stored_unit.hpp"
#include "problem/strided_tensor.hpp"

namespace scoremod::backend::reference {

/// Reads a tensor into dense order; rows that a varlen or paged one lacks are zero.
template <class Real>
std::vector<Real> load_dense(const problem::StridedTensor& tensor, const void* data) {
  std::vector<Real> values(static_cast<std::size_t>(tensor.elements()));
  tensor.for_each_offset([&](std::int64_t number, std::int64_t offset) {
    values[static_cast<std::size_t>(number)] = load_element<Real>(data, tensor.dtype, offset);
  });
  return values;
}

/// Multiplies a tensor's rows, in the order batch, heads, sequence, by the block scales of those that it has.
template <class Real>
void apply_block_scales(const problem::BlockScales& scales, const problem::RowAddressing& rows,
                        std::span<const void* const> operands, std::span<Real> values) {
  const problem::TensorShape& shape = rows.shape();
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    const std::int64_t positions = rows.positions(b, operands);
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      const problem::RowScales of_head = scales.of(b, h, operands);
      for (std::int64_t i = 0; i < positions; ++i) {
        const std::int64_t row = (b * shape.heads + h) * shape.sequence + i;
        of_head.apply(i,
                      values.subspan(static_cast<std::size_t>(row * shape.dim), static_cast<std::size_t>(shape.dim)));
      }
    }
  }
}

/// The values of q, k, v, o or a gradient, in the order batch, heads, sequence, dim. `operands` are the call's, in the
/// order of the declarations, which only FP8 tensors need for their scales.
template <class Real>
std::vector<Real> load_dense(const AttentionProblem& problem, problem::TensorRole role, const void* data,
                             std::span<const void* const> operands = {}) {
  const problem::StridedTensor tensor = problem::placed_tensor(problem, role, operands);
  std::vector<Real> values = load_dense<Real>(tensor, data);
  if (!is_float8(tensor.dtype)) return values;
  if (const auto scales = problem::block_scales_of(problem, role)) {
    apply_block_scales(*scales, problem::RowAddressing(problem, role), operands, std::span(values));
    // Engines without FP8 multiply what they make of these, which the plain evaluation rounds as they do.
    if constexpr (std::is_same_v<Real, float>)
      for (float& value : values) value = round_to(problem::product_dtype(problem), value);
    return values;
  }
  const problem::StoredUnit unit(problem, role);
  const std::int64_t heads = tensor.shape[1], of_head = tensor.shape[2] * tensor.shape[3];
  for (std::int64_t first = 0; first < tensor.elements(); first += of_head) {
    const auto factor = static_cast<Real>(unit.of(operands, first / of_head % heads));
    for (std::int64_t i = first; i < first + of_head; ++i) values[static_cast<std::size_t>(i)] *= factor;
  }
  return values;
}

/// Writes a dense tensor where the problem says that it lies, as it is stored, rounded to its dtype. Rows without
/// memory are left out.
template <class Real>
void store_dense(const AttentionProblem& problem, problem::TensorRole role, const std::vector<Real>& values, void* data,
                 std::span<const void* const> operands = {}) {
  const auto tensor = problem::placed_tensor(problem, role, operands);
  tensor.for_each_offset([&](std::int64_t number, std::int64_t offset) {
    store_element(data, tensor.dtype, offset, values[static_cast<std::size_t>(number)]);
  });
}

}  // namespace scoremod::backend::reference
