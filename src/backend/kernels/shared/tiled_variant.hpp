#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

#include "backend/kernels/family.hpp"
#include "backend/kernels/mask/mask_work.hpp"
#include "backend/kernels/shared/tile_shape.hpp"
#include "backend/kernels/shared/tiled_time.hpp"

namespace scoremod::backend::kernels {

/// The work that a mask leaves, which variants of neighbouring shapes share: it is estimated when the first one asks.
class SharedMaskWork {
 public:
  const MaskWork& of(const Work& work, const TileShape& shape) const;

 private:
  mutable std::once_flag once_;
  mutable MaskWork mask_;
};

/// The files of a variant's kernels.
struct KernelFiles {
  /// Kernels that take little time to compile, in one module with those of the block mask and tables.
  Module small;
  Module large;  ///< each file is a module of its own
};

/// A variant of the attention families, whose kernels walk over tiles of scores of one TileShape.
class TiledVariant : public Variant {
 public:
  explicit TiledVariant(const TileShape& shape, std::shared_ptr<const SharedMaskWork> mask = nullptr)
      : shape_(shape), mask_(mask ? std::move(mask) : std::make_shared<const SharedMaskWork>()) {}

  KernelSource source(const Work& work) const override;
  std::string label(const Work& work) const override;
  void write(CanonicalWriter& out) const override;
  cuda::Instructions instructions() const override { return shape_.instructions(); }
  bool is_same(const Variant& other) const override {
    const auto* tiled = dynamic_cast<const TiledVariant*>(&other);
    return tiled != nullptr && typeid(*this) == typeid(other) && shape_ == tiled->shape_;
  }

  const TileShape& shape() const { return shape_; }

 protected:
  virtual KernelFiles files(Direction direction) const = 0;
  /// Fills the holes of the family's own files.
  virtual void fill(Holes&, const Work&) const {}
  /// tiled_time() and, if the work has targets, gains_time().
  Prediction time_from(const Work& work, const DeviceRates& rates, const TiledTimes& direct, bool small) const;
  const MaskWork& mask_work(const Work& work) const { return mask_->of(work, shape_); }

 private:
  TileShape shape_;
  std::shared_ptr<const SharedMaskWork> mask_;
};

}  // namespace scoremod::backend::kernels
