#pragma once

#include <memory>

#include "backend/kernels/shared/tiled_variant.hpp"

namespace scoremod::backend::kernels {

/// Kernels of WGMMA and TMA, for sm_90 alone.
extern const KernelFamily kHopperFamily;
/// The times of a backward that adds dq up beside dk and dv: five MMAs in place of seven hide more of the program.
inline constexpr TiledTimes kHopperFusedTimes{1.92, 0.245, 0.22, 1, 1, 0.016, 0.54};

std::shared_ptr<const TiledVariant> hopper_variant(const TileShape& shape);

}  // namespace scoremod::backend::kernels
