#pragma once

#include "backend/cpu/attention_shape.hpp"
#include "backend/cpu/matrix_product.hpp"
#include "backend/cpu/scratch.hpp"

namespace scoremod::backend::cpu {

/// The packed keys of one tile, and the one way to make scores from them. The LSE of a backward belongs to the
/// forward's scores, bit for bit. A score rounded otherwise may be on the other side of a comparison in the program.
class KeyTile {
 public:
  /// Takes memory for `keys` keys.
  KeyTile(const AttentionShape& shape, std::size_t keys, Scratch& scratch);

  /// Packs `count` keys from `first` on. Returns whether every number is finite.
  bool pack(const RowSource& source, std::int64_t first, std::size_t count);

  /// Writes the scores of `count` packed queries, `q.stride` floats apart, against `columns` keys from the tile's
  /// `column`-th on, which is a multiple of kPanelColumns. May write up to the next multiple of kPanelColumns.
  void scores(std::size_t count, Rows<const float> q, std::size_t column, std::size_t columns, Rows<float> out) const;

  /// The packed keys from the `column`-th on.
  Rows<const float> rows_from(std::size_t column) const;

 private:
  const std::size_t dims_, stride_;
  const bool by_dots_;
  float* rows_;
  float* panels_;  ///< null where dots are taken
};

}  // namespace scoremod::backend::cpu
