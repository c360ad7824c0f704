#pragma once

#include <span>

#include "backend/candidate.hpp"
#include "backend/kernels/mask/mask_work.hpp"
#include "backend/kernels/operand_gradients/operand_source.hpp"
#include "backend/kernels/shared/tile_shape.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::kernels {

/// The time of a direction without a program, in milliseconds of an H200 at the shape of measured_at.hpp. Rows of tiles
/// take some beside their tiles.
struct TiledTimes {
  double tiles, rows;
  double dimless;     ///< the part that does not grow with the head dims
  double wide_heads;  ///< how much longer if accumulators of wide heads leave no room for large tiles
  double uneven;      ///< how much longer if rows of tiles run unequal numbers of them
  double launches;
  double evaluations;  ///< of the program for each score: a backward's kernels of queries and of keys make one each
};

/// How long one direction of a problem takes with tiles of this shape, scaled from `direct`, what a Hopper GPU
/// took (bench/results/attention_kernels.json and, by lengths and masks, peers.json). `mask` is mask_work() of the
/// direction. Tiles are `small` if a matrix that is read from shared memory serves half as many MMAs. Pure.
Prediction tiled_time(const compiler::CompiledProblem& problem, Direction direction, const TileShape& shape,
                      const MaskWork& mask, const DeviceRates& rates, const TiledTimes& direct, bool small);

/// The predicted time of operand gradients from tiles of scores; `mask` is of the backward.
Prediction operand_time(const compiler::CompiledProblem& problem, std::span<const OperandTarget> targets,
                        const TileShape& shape, const MaskWork& mask, const DeviceRates& rates);

/// The growth of tiled_time() if these are summed beside dq, dk and dv, in milliseconds.
double gains_time(const compiler::CompiledProblem& problem, std::span<const OperandTarget> targets,
                  const TileShape& shape, const MaskWork& mask, const DeviceRates& rates);

}  // namespace scoremod::backend::kernels
