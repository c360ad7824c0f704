#pragma once

#include <cstddef>
#include <cstdint>

#include "scoremod/dtype.hpp"

#include "problem/block_scales.hpp"
#include "problem/row_addressing.hpp"

namespace scoremod::backend::cpu {

/// Rows of one (batch, head) of a tensor of a float dtype. Strides are in elements.
struct RowSource {
  const void* data = nullptr;  ///< element 0 of row 0
  DType dtype = DType::kF32;
  std::int64_t row_stride = 0;
  std::int64_t dim_stride = 1;
  std::size_t dims = 0;
  problem::BlockTable table = {};  ///< of a paged tensor
  float unit = 1;                  ///< value = stored * unit, times its block scale where there are some
  problem::RowScales scales = {};

  /// From element 0 of row 0 (of block 0, in a paged tensor) to that of a row.
  std::int64_t offset(std::int64_t row) const {
    if (table.blocks == nullptr) return row * row_stride;
    return table.block_row(row) + table.within(row) * row_stride;
  }
};

/// The destination of converted rows.
struct RowTarget {
  void* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t row_stride = 0;
  std::int64_t dim_stride = 1;
  std::size_t dims = 0;
  float scale = 1;  ///< the factor of values before they are stored
};

/// Copies `rows` rows from row `first` on as f32: their values times `scale`, `stride` floats apart (a multiple of
/// kColumnAlignment). Fills each up with zeros. Returns whether every number written is finite.
bool pack_rows(const RowSource& source, std::int64_t first, std::size_t rows, float scale, float* out,
               std::size_t stride);

/// Lays rows (packed, `stride` floats apart) out as panels of kPanelColumns columns: panel p holds for each dim the
/// values of rows 32 p .. 32 p + 31, zero beyond `rows`.
void transpose_to_panels(const float* packed, std::size_t rows, std::size_t dims, std::size_t stride, float* panels);

/// Writes one row of f32 numbers times `scale` and the target's, rounded to nearest even.
void store_row(const float* row, float scale, const RowTarget& target, std::int64_t index);

}  // namespace scoremod::backend::cpu
