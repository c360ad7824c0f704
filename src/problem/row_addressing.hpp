#pragma once

#include <cstdint>
#include <string>

#include "problem/tensor_view.hpp"

namespace scoremod::problem {

/// Where the rows of q, k, v or o lie, and those of their gradients, which lie as they do. A row is the head dim's
/// elements at one position of the sequence, of one batch and head. Everything is in elements from the tensor's first.
///
/// Who walks a tensor's memory, or writes code that does, asks here and multiplies no strides of its own: another way
/// to lie is then added in this one place. Today every tensor is dense in the sense of Strides: each dimension has one
/// stride.
class RowAddressing {
 public:
  RowAddressing(const AttentionProblem& problem, TensorRole role)
      : shape_(shape_of(problem, role)), strides_(strides_of(problem, role)) {}

  const TensorShape& shape() const { return shape_; }
  const Strides& strides() const { return strides_; }

  /// The first element of a row.
  std::int64_t row(std::int64_t batch, std::int64_t head, std::int64_t position) const {
    return batch * strides_.batch + head * strides_.head + position * strides_.sequence;
  }
  /// From an element of a row to the next.
  std::int64_t element_step() const { return strides_.dim; }
  /// From a row to the one at the next position, of the same batch and head.
  std::int64_t row_step() const { return strides_.sequence; }
  /// From a row to the one of the next head, of the same batch and position.
  std::int64_t head_step() const { return strides_.head; }

  /// row() as a C expression of 64 bits, of these expressions, which are put in parentheses.
  std::string row_expression(const std::string& batch, const std::string& head, const std::string& position) const;

 private:
  TensorShape shape_;
  Strides strides_;
};

}  // namespace scoremod::problem
