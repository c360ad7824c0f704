#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "problem/tensor_view.hpp"

namespace scoremod::problem {

/// The positions of one batch of a paged tensor, in elements from the first row of a head in page 0.
struct BlockTable {
  const std::int32_t* blocks = nullptr;  ///< of the batch; null where the tensor is not paged
  std::int64_t step = 1;                 ///< from a block's number to the next
  std::int64_t block_size = 1;
  std::int64_t block_step = 0;  ///< from a block to the next in memory

  /// The distance of a position's page, which row() adds, and the position within the page.
  std::int64_t block_row(std::int64_t position) const { return blocks[position / block_size * step] * block_step; }
  std::int64_t within(std::int64_t position) const { return position % block_size; }
};

/// The rows of one batch and head, in elements from the tensor's first.
struct HeadRows {
  std::int64_t first = 0;
  std::int64_t row_step = 0;  ///< within a block, where there are blocks
  BlockTable table;

  std::int64_t row(std::int64_t position) const {
    if (table.blocks == nullptr) return first + position * row_step;
    return first + table.block_row(position) + table.within(position) * row_step;
  }
};

/// The addresses of rows of q, k, v, o, their gradients and the LSE. A row is the head dim's elements at one position
/// of the sequence, of one batch and head. All are in elements from the tensor's first.
///
/// All code that walks a tensor's memory, or generates such code, must ask here and multiply no strides itself. Then a
/// new layout is added in one place only. A tensor is dense (one stride for each dimension), varlen (offsets give each
/// batch's first row) or paged (a page table gives each page).
class RowAddressing {
 public:
  /// The problem has its implied operands, unless the tensor is dense.
  RowAddressing(const AttentionProblem& problem, TensorRole role);

  const TensorShape& shape() const { return shape_; }
  const TensorShape& memory_shape() const { return memory_shape_; }
  const Strides& strides() const { return strides_; }
  DType dtype() const { return dtype_; }
  bool is_dense() const { return !offsets_ && !pages_; }

  /// The first element of a row of a dense tensor.
  std::int64_t row(std::int64_t batch, std::int64_t head, std::int64_t position) const {
    return batch * strides_.batch + head * strides_.head + position * strides_.sequence;
  }
  /// From an element of a row to the next.
  std::int64_t element_step() const { return strides_.dim; }
  /// From a row to the one at the next position, of the same batch and head, in a dense tensor.
  std::int64_t row_step() const { return strides_.sequence; }
  /// From a row to the one of the next head, of the same batch and position.
  std::int64_t head_step() const { return strides_.head; }

  /// The rows of one batch and head of a call with these operands, in the order of the declarations, on the host.
  HeadRows rows(std::int64_t batch, std::int64_t head, std::span<const void* const> operands) const;
  /// How many positions of a batch have rows in memory: all, except in varlen and paged tensors.
  std::int64_t positions(std::int64_t batch, std::span<const void* const> operands) const;

  /// An operand of i32 that says where rows lie.
  struct Places {
    std::uint32_t operand = 0;
    std::int64_t outer = 1, inner = 1;  ///< strides in elements

    const std::int32_t* at(std::span<const void* const> operands, std::int64_t i) const {
      return static_cast<const std::int32_t*>(operands[operand]) + i * outer;
    }
  };
  /// For code that finds rows itself, as a kernel does: the offsets of a varlen tensor, and the page table and lengths
  /// of a paged one.
  const std::optional<Places>& offsets() const { return offsets_; }
  const std::optional<Places>& pages() const { return pages_; }
  const std::optional<Places>& lengths() const { return lengths_; }

  /// row() as a C expression of 64 bits, of these expressions, which are put in parentheses.
  std::string row_expression(const std::string& batch, const std::string& head, const std::string& position) const;

 private:
  static Places places(const AttentionProblem& problem, const char* name);

  TensorShape shape_, memory_shape_;
  Strides strides_;
  DType dtype_;
  std::optional<Places> offsets_;          ///< of a varlen tensor
  std::optional<Places> pages_, lengths_;  ///< of a paged one
};

}  // namespace scoremod::problem
