#pragma once

#include <memory>

#include "backend/kernels/tiled_variant.hpp"

namespace scoremod::backend::kernels {

/// Kernels of WGMMA and TMA, for sm_90 alone.
extern const KernelFamily kHopperFamily;

std::shared_ptr<const TiledVariant> hopper_variant(const TileShape& shape);

}  // namespace scoremod::backend::kernels
