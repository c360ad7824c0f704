#include "support/tiled_call.hpp"

#include "backend/kernels/hopper/family.hpp"
#include "backend/kernels/portable/family.hpp"
#include "backend/kernels/split_kv/family.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::kernels {

std::shared_ptr<const TiledVariant> tiled_variant(const TileShape& shape) {
  switch (shape.family) {
    case Family::kPortable: return portable_variant(shape);
    case Family::kHopper: return hopper_variant(shape);
    case Family::kSplitKv:
    case Family::kHopperSplitKv: return split_kv_variant(shape);
  }
  fail_bug("unknown family of kernels ", static_cast<int>(shape.family));
}

}  // namespace scoremod::backend::kernels
