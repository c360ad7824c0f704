#pragma once

#include <memory>

#include "backend/kernels/shared/tiled_variant.hpp"

namespace scoremod::backend::kernels {

/// Decode forwards: split-KV and pack-GQA, by mma.sync and cp.async, or by WGMMA and TMA.
extern const KernelFamily kSplitKvFamily;

std::shared_ptr<const TiledVariant> split_kv_variant(const TileShape& shape);

}  // namespace scoremod::backend::kernels
