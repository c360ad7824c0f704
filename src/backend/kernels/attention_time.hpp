#pragma once

#include <span>

#include "backend/candidate.hpp"
#include "backend/kernels/mask_work.hpp"
#include "backend/kernels/operand_source.hpp"
#include "backend/kernels/tile_shape.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::kernels {

/// How long one direction of a problem takes with tiles of this shape, scaled from what an H200 took
/// (bench/results/attention_kernels.json). `mask` is mask_work() of the direction. Pure.
Prediction attention_time(const compiler::CompiledProblem& problem, Direction direction, const TileShape& shape,
                          const MaskWork& mask, const DeviceRates& rates);

/// The predicted time of operand gradients from tiles of scores; `mask` is of the backward.
Prediction operand_time(const compiler::CompiledProblem& problem, std::span<const OperandTarget> targets,
                        const TileShape& shape, const MaskWork& mask, const DeviceRates& rates);

/// The growth of attention_time() if these are summed beside dq, dk and dv, in milliseconds.
double gains_time(const compiler::CompiledProblem& problem, std::span<const OperandTarget> targets,
                  const TileShape& shape, const MaskWork& mask, const DeviceRates& rates);

}  // namespace scoremod::backend::kernels
