#pragma once

#include <optional>
#include <string_view>

#include "backend/backend.hpp"

namespace scoremod::backend::cudnn {

/// The time of attention without a modifier in one direction, at the explorer's timed shape. That is batch 4, 16 heads,
/// sequence 4096, head dim 128, bf16, on an H200.
struct TileCosts {
  double row;   ///< milliseconds of the 64 heads' tiles of 128 rows, for each of the 32
  double tile;  ///< milliseconds of the 64 heads' tiles of 128 rows and 128 keys, for each of the 32 * 32
};
TileCosts tile_costs(Direction direction);

/// The milliseconds that one more of this work in a modifier adds there, over all tiles (score_work() has the names).
/// Nothing for work that no timed pattern has.
std::optional<double> score_cost(std::string_view work, Direction direction);

}  // namespace scoremod::backend::cudnn
