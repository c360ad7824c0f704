#pragma once

#include <memory>

#include "backend/kernels/shared/tiled_variant.hpp"

namespace scoremod::backend::kernels {

/// Kernels of mma.sync and cp.async, for sm_80 and later.
extern const KernelFamily kPortableFamily;

std::shared_ptr<const TiledVariant> portable_variant(const TileShape& shape);

}  // namespace scoremod::backend::kernels
