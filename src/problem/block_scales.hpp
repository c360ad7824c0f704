#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "problem/row_addressing.hpp"

namespace scoremod::problem {

/// The elements that share a scale in MXFP8 (OCP Microscaling Formats (MX) Specification 1.0, table 1).
inline constexpr std::int64_t kScaleBlock = 32;

/// The extents that block scales may have along a dimension of a tensor's memory (memory_shape_of), without repeats:
/// one for each element, for each block of 32, or for all. Batches and heads have no blocks.
std::vector<std::int64_t> scale_extents(const TensorShape& tensor, std::size_t dimension);

/// Whether a spec's shape is that of block scales of the tensor: [batch, heads, sequence, dim] of its memory
/// (memory_shape_of), each by scale_extents(). An open extent fits, since calls bring it.
bool fits_block_scales(const AttentionProblem& problem, TensorRole role, std::span<const std::int64_t> shape);

/// The block scales of the rows of one batch and head; null pointers without any.
struct RowScales {
  const float* first = nullptr;
  std::int64_t first_row = 0;  ///< of position 0 in the tensor's memory
  std::int64_t row_step = 0, rows_per_scale = 1;
  std::int64_t element_step = 0, elements_per_scale = 1;
  BlockTable table = {};  ///< of a paged tensor; block_step is that of the scales

  /// Multiplies the elements of the row at a position by their scales.
  template <class Real>
  void apply(std::int64_t position, std::span<Real> row) const {
    const bool is_paged = table.blocks != nullptr;
    const std::int64_t of_page = is_paged ? table.block_row(position) : 0;
    const std::int64_t in_memory = is_paged ? table.within(position) : first_row + position;
    const float* scales = first + of_page + in_memory / rows_per_scale * row_step;
    const auto count = static_cast<std::int64_t>(row.size());
    for (std::int64_t d = 0; d < count; scales += element_step) {
      const std::int64_t end = std::min(count, d + elements_per_scale);
      for (; d < end; ++d) row[static_cast<std::size_t>(d)] *= static_cast<Real>(*scales);
    }
  }
};

/// The places of the scales of a tensor's memory, [batch, heads, sequence, dim]. Along each dimension they lie `steps`
/// elements apart, and `per_scale` of the tensor's elements share one.
struct ScalePlaces {
  std::array<std::int64_t, 4> steps{};  ///< 0 along dimensions that share a scale
  std::array<std::int64_t, 4> per_scale{1, 1, 1, 1};
};

/// The block scales of q, k or v: value = stored * scale of the element's block. A call may bring any numbers.
class BlockScales {
 public:
  /// The problem has its implied operands, and block scales of this tensor.
  BlockScales(const AttentionProblem& problem, TensorRole role);

  /// The scales of one batch and head in a call on the host, with these operands in the order of the declarations.
  RowScales of(std::int64_t batch, std::int64_t head, std::span<const void* const> operands) const;

  /// For code that finds scales itself, as a kernel does: the operand that they are, and their places in it.
  std::uint32_t operand() const { return operand_; }
  const ScalePlaces& places() const { return places_; }

 private:
  RowAddressing rows_;  ///< of the tensor
  std::uint32_t operand_ = 0;
  ScalePlaces places_;
};

/// The shape of block scales of a tensor whose memory gets another shape: it shares scales as before.
std::vector<std::int64_t> resized_block_scales(std::span<const std::int64_t> scales, const TensorShape& before,
                                               const TensorShape& after);

/// The block scales of a tensor of the problem; none where it has no such scales.
std::optional<BlockScales> block_scales_of(const AttentionProblem& problem, TensorRole role);

}  // namespace scoremod::problem
