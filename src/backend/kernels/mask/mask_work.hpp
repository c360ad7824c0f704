#pragma once

#include "backend/kernels/shared/tile_shape.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::kernels {

/// The parts of all tiles of a head that kernels run, and that they evaluate the mask in (which are among them).
struct MaskWork {
  double run = 1, partial = 0;
  bool uneven = false;       ///< some rows of tiles run more than others
  bool few_longest = false;  ///< the first or the last row of tiles runs much more than most do
};

/// The part of all pairs of a query and a key that varlen sequences fill if they are as long as each other.
double filled_part(const AttentionProblem& problem);

/// The tiles that a direction's mask leaves, from the program: intervals are evaluated over boxes of tiles for some
/// rows of tiles, evenly spaced. If an operand decides, the kind of the mask says what is usual. It takes some 0.1 ms.
MaskWork mask_work(const compiler::CompiledProblem& problem, Direction direction, const TileShape& shape);

}  // namespace scoremod::backend::kernels
