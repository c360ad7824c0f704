#pragma once

#include "backend/candidate.hpp"
#include "backend/kernels/mask/mask_work.hpp"
#include "backend/kernels/shared/tile_shape.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::kernels {

/// How long a forward takes in one of split_kv_shapes() or hopper_split_kv_shapes(), scaled from an H200's times, in
/// part by a probe's ratios (bench/NOTES.md). `mask` is mask_work() of the forward. Pure.
Prediction split_kv_time(const compiler::CompiledProblem& problem, const TileShape& shape, const MaskWork& mask,
                         const DeviceRates& rates);

}  // namespace scoremod::backend::kernels
