#include "backend/cpu/key_tile.hpp"

#include "backend/cpu/row_kernels.hpp"

namespace scoremod::backend::cpu {
namespace {

/// With fewer queries than this K is read as it lies: laying it out for the register blocks would cost more than it
/// saves. A property of the problem, not of a unit of work, so that results do not depend on how units are cut.
constexpr std::int64_t kMinPackedQueries = 4;

}  // namespace

KeyTile::KeyTile(const AttentionShape& shape, std::size_t keys, Scratch& scratch)
    : dims_(shape.dim_qk),
      stride_(shape.padded_qk),
      by_dots_(shape.seq_q < kMinPackedQueries),
      rows_(scratch.take<float>(keys * stride_)),
      panels_(by_dots_ ? nullptr : scratch.take<float>(round_up(keys, kPanelColumns) * dims_)) {}

bool KeyTile::pack(const RowSource& source, std::int64_t first, std::size_t count) {
  const bool finite = pack_rows(source, first, count, 1, rows_, stride_);
  if (!by_dots_) transpose_to_panels(rows_, count, dims_, stride_, panels_);
  return finite;
}

void KeyTile::scores(std::size_t count, Rows<const float> q, std::size_t column, std::size_t columns,
                     Rows<float> out) const {
  if (!by_dots_) return matrix_product(count, q, {panels_, dims_, column, columns}, out);
  for (std::size_t r = 0; r < count; ++r) {
    dots(q.data + r * q.stride, rows_from(column).data, stride_, stride_, columns, out.data + r * out.stride);
  }
}

Rows<const float> KeyTile::rows_from(std::size_t column) const { return {rows_ + column * stride_, stride_}; }

}  // namespace scoremod::backend::cpu
