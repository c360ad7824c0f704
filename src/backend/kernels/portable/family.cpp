#include "backend/kernels/portable/family.hpp"

#include <algorithm>

#include "backend/kernels/shared/tile_shape.hpp"
#include "backend/kernels/shared/tiled_variant.hpp"

namespace scoremod::backend::kernels {
namespace {

constexpr TiledTimes kForwardTimes{1.73, 0.075, 0.27, 1.4, 1.1, 0.006, 1},
    kBackwardTimes{6.71, 0.3, 0.3, 2.3, 1.065, 0.016, 2};

class PortableVariant final : public TiledVariant {
 public:
  PortableVariant(const TileShape& shape, bool last, std::shared_ptr<const SharedMaskWork> mask = nullptr)
      : TiledVariant(shape, std::move(mask)), last_(last) {}

  CallLayout layout(const Work& work) const override {
    const AttentionProblem& p = work.problem.problem;
    CallLayout layout = tiled_layout(work, shape());
    const std::int64_t tiles = layout.query_work_tiles * p.heads_q;
    const int dim_qk = static_cast<int>(p.dim_qk), dim_v = static_cast<int>(p.dim_v);
    if (work.direction == Direction::kForward) {
      const device::PortableForwardStorage storage{dim_qk, static_cast<int>(value_dims(shape(), p.dim_v)),
                                                   shape().queries, shape().keys, shape().element_bytes};
      add_forward_launches(layout, {"attention_forward", tiles, shape().threads(), storage.bytes}, shape(), p.dim_v);
      return layout;
    }
    layout.add_launch(row_terms_launch(work, layout, shape()));
    const device::PortableQueriesStorage queries{dim_qk, dim_v, shape().queries, shape().key_step,
                                                 shape().element_bytes};
    layout.add_launch({"attention_backward_queries", tiles, shape().threads(), queries.bytes});
    KernelLaunch keys{"attention_backward_keys", layout.key_work_tiles * p.heads_kv, shape().threads(),
                      portable_keys_storage(shape(), p).bytes};
    layout.add_launch(keys);
    keys.kernel = "attention_backward_values";
    if (shape().separate_dv) layout.add_launch(keys);
    add_gains(layout, work, shape());
    return layout;
  }

  Prediction time(const Work& work, const DeviceRates& rates) const override {
    const bool forward = work.direction == Direction::kForward;
    return time_from(work, rates, forward ? kForwardTimes : kBackwardTimes, shape().row_tiles == 1);
  }

  bool may_spill() const override { return last_; }

 protected:
  KernelFiles files(Direction direction) const override {
    if (direction == Direction::kForward) return {{}, {{"backend/kernels/portable/forward.cuh"}}};
    constexpr const char* kBackward = "backend/kernels/portable/backward.cuh";
    KernelFiles files{{{"backend/kernels/shared/row_terms.cuh", {"attention_backward_rows"}},
                       {kBackward, {"attention_backward_queries"}}},
                      {{kBackward, {"attention_backward_keys"}}}};
    if (shape().separate_dv) files.large.push_back({kBackward, {"attention_backward_values"}});
    return files;
  }

 private:
  bool last_;
};

std::vector<UnsupportedReason> objections(const Work& work, const DeviceProperties* device) {
  return tiled_objections(work, device);
}

/// Registers are full without sums of operand gradients. A gradient that is written at once takes none, and a sink's
/// has a kernel of its own.
bool has_sums(std::span<const OperandTarget> targets) {
  return std::ranges::any_of(targets, [](const OperandTarget& target) {
    return target.sum != OperandSum::kElement && target.sum != OperandSum::kSink;
  });
}

Variants variants(const Work& work, const DeviceProperties&, std::vector<UnsupportedReason>&) {
  if (has_sums(work.targets)) return {};
  const auto mask = std::make_shared<const SharedMaskWork>();
  const std::vector<TileShape> shapes = tile_shapes(work.problem.problem, work.direction);
  Variants found;
  for (const TileShape& shape : shapes)
    found.push_back(std::make_shared<const PortableVariant>(shape, &shape == &shapes.back(), mask));
  return found;
}

}  // namespace

const KernelFamily kPortableFamily{"portable", objections, variants};

std::shared_ptr<const TiledVariant> portable_variant(const TileShape& shape) {
  return std::make_shared<const PortableVariant>(shape, false);
}

}  // namespace scoremod::backend::kernels
