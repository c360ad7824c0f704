#include "backend/kernels/split_kv/family.hpp"

#include "backend/kernels/hopper/shapes.hpp"
#include "backend/kernels/hopper/text.hpp"
#include "backend/kernels/shared/device_fit.hpp"
#include "backend/kernels/shared/tiled_layout.hpp"
#include "backend/kernels/split_kv/shapes.hpp"
#include "backend/kernels/split_kv/time.hpp"

namespace scoremod::backend::kernels {
namespace {

class SplitKvVariant final : public TiledVariant {
 public:
  using TiledVariant::TiledVariant;

  CallLayout layout(const Work& work) const override {
    const AttentionProblem& p = work.problem.problem;
    const bool hopper = is_hopper(shape().family), persistent = shape().persistent_ctas > 0;
    CallLayout layout;
    layout.query_tiles = static_cast<int>(split_kv_row_tiles(shape(), p));
    layout.key_tiles = static_cast<int>(tiles_of(p.seq_kv, shape().keys));
    layout.splits = shape().splits;
    layout.blocks = shape().persistent_ctas;
    layout.tags_calls = shape().splits > 1 || persistent;
    // These kernels are memory-bound; others were measured with 256 only.
    if (hopper) layout.cache_lines = CacheLines::k128Bytes;
    const std::int64_t tiles = layout.query_tiles * p.batch * p.heads_kv;
    if (layout.tags_calls) {
      layout.add_workspace(&device::AttentionArguments::parts, split_kv_part_bytes(shape(), p));
      layout.add_workspace(&device::AttentionArguments::shares,
                           static_cast<std::size_t>(tiles) * sizeof(*device::AttentionArguments::shares));
    }
    const char* const kernel = hopper       ? "hopper_split_kv_decode"
                               : persistent ? "split_kv_persistent_decode"
                                            : "split_kv_decode";
    layout.add_launch({kernel, persistent ? layout.blocks : tiles * shape().splits, shape().threads(),
                       split_kv_shared_bytes(shape(), p.dim_qk, p.dim_v), hopper});
    return layout;
  }

  Prediction time(const Work& work, const DeviceRates& rates) const override {
    return split_kv_time(work.problem, shape(), mask_work(work), rates);
  }

  bool is_same(const Variant& other) const override {
    const auto* decode = dynamic_cast<const SplitKvVariant*>(&other);
    if (decode == nullptr || (decode->shape().splits > 1) != (shape().splits > 1)) return false;
    // How many splits is an argument of the kernels.
    TileShape same = decode->shape();
    same.splits = shape().splits;
    return same == shape();
  }
  std::shared_ptr<const Variant> at_sizes_of(const Work& work, const DeviceProperties& device) const override {
    return split_kv_variant(split_kv_at_sizes(shape(), work.problem.problem, device.multiprocessors));
  }

 protected:
  void fill(Holes& holes, const Work& work) const override {
    if (is_hopper(shape().family)) fill_hopper(holes, work.problem.problem, work.direction, shape());
  }
  KernelFiles files(Direction) const override {
    if (is_hopper(shape().family)) return {{}, {{"backend/kernels/split_kv/hopper_decode.cuh"}}};
    if (shape().persistent_ctas > 0) return {{}, {{"backend/kernels/split_kv/persistent_decode.cuh"}}};
    return {{}, {{"backend/kernels/split_kv/decode.cuh", {"split_kv_decode"}}}};
  }
};

std::vector<UnsupportedReason> objections(const Work& work, const DeviceProperties* device) {
  std::vector<UnsupportedReason> reasons = tiled_objections(work.problem, device);
  if (!reasons.empty() || work.direction == Direction::kBackward) return reasons;
  return split_kv_objections(work.problem.problem);
}

Variants variants(const Work& work, const DeviceProperties& device, std::vector<UnsupportedReason>& reasons) {
  if (work.direction == Direction::kBackward) return {};
  const AttentionProblem& problem = work.problem.problem;
  Variants found;
  const auto add = [&](const std::vector<TileShape>& shapes) {
    for (const TileShape& shape : shapes) found.push_back(split_kv_variant(shape));
  };
  add(split_kv_shapes(problem, device));
  add(persistent_split_kv_shapes(problem, device));
  if (!hopper_objections(problem, work.direction, device.compute_capability).empty()) return found;
  const std::vector<UnsupportedReason> against = hopper_split_kv_objections(problem);
  reasons.insert(reasons.end(), against.begin(), against.end());
  if (against.empty()) add(hopper_split_kv_shapes(problem, device.multiprocessors));
  return found;
}

}  // namespace

const KernelFamily kSplitKvFamily{"split_kv", objections, variants};

std::shared_ptr<const TiledVariant> split_kv_variant(const TileShape& shape) {
  return std::make_shared<const SplitKvVariant>(shape);
}

}  // namespace scoremod::backend::kernels
