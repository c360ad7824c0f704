#pragma once

#include "backend/kernels/shared/tile_shape.hpp"
#include "backend/kernels/text/kernel_source.hpp"
#include "backend/plan.hpp"

namespace scoremod::backend::kernels {

/// Fills the holes of hopper/tiles.cuh and hopper/primitives.cuh.
void fill_hopper(Holes& holes, const AttentionProblem& problem, Direction direction, const TileShape& shape);

}  // namespace scoremod::backend::kernels
