#include "support/tiled_call.hpp"

#include "base/fail.hpp"

namespace scoremod::backend::kernels {
namespace {

struct MakeVariant {
  std::shared_ptr<const Variant> operator()(const PortableShape& shape) const { return portable_variant(shape); }
  std::shared_ptr<const Variant> operator()(const HopperShape& shape) const { return hopper_variant(shape); }
  std::shared_ptr<const Variant> operator()(const SplitKvShape& shape) const { return split_kv_variant(shape); }
  std::shared_ptr<const Variant> operator()(const Float8Shape& shape) const { return float8_variant(shape); }
  std::shared_ptr<const Variant> operator()(const std::shared_ptr<const Variant>& variant) const { return variant; }
};

struct FindTile {
  const TileShape& operator()(const TileShape& shape) const { return shape; }
  const TileShape& operator()(const std::shared_ptr<const Variant>&) const { fail_bug("a variant without a shape"); }
};

struct FindTraits {
  template <class Shape>
  KernelTraits operator()(const Shape& shape) const {
    return shape.traits();
  }
  KernelTraits operator()(const std::shared_ptr<const Variant>&) const { fail_bug("a variant without a shape"); }
};

}  // namespace

std::shared_ptr<const Variant> tiled_variant(const AnyShape& shape) { return std::visit(MakeVariant{}, shape); }
const TileShape& tile_of(const AnyShape& shape) { return std::visit(FindTile{}, shape); }
KernelTraits traits_of(const AnyShape& shape) { return std::visit(FindTraits{}, shape); }

}  // namespace scoremod::backend::kernels
