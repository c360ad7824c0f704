#include "backend/kernels/portable/family.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "backend/few_rows.hpp"
#include "backend/kernels/operand_gradients/operand_gradients.hpp"
#include "backend/kernels/shared/tiled_variant.hpp"

namespace scoremod::backend::kernels {
namespace {

std::int64_t padded(std::int64_t dim) { return (dim + 15) / 16 * 16; }

constexpr TiledTimes kForwardTimes{1.73, 0.075, 0.27, 1.4, 1.1, 0.006, 1},
    kBackwardTimes{6.71, 0.3, 0.3, 2.3, 1.065, 0.016, 2};

/// Whether tiles and MMAs are of floats. A backward's are too if d_o would lose digits in q's dtype: f16 has few of a
/// float's numbers, and supplied deltas were made from d_o as it is.
bool needs_floats(const AttentionProblem& problem, Direction direction) {
  const bool rounds_d_o = direction == Direction::kBackward && problem.dtype_o.value_or(problem.dtype) != problem.dtype;
  return problem.dtype == DType::kF32 || (rounds_d_o && (problem.dtype == DType::kF16 || problem.given_deltas));
}

/// The shape with half the warps, and so half the rows.
PortableShape half_of(PortableShape shape) {
  shape.warps /= 2;
  shape.queries /= 2;
  return shape;
}

PortableShape forward_shape(const AttentionProblem& problem) {
  const std::int64_t widest = padded(std::max(problem.dim_qk, problem.dim_v));
  const bool floats = needs_floats(problem, Direction::kForward);
  PortableShape shape;
  shape.element_bytes = floats ? 4 : 2;
  shape.value_parts = value_parts_of(problem.dim_v);
  if (widest > 128) {
    shape.keys = floats ? 16 : 32;
    // Two rows of so many floats take the shared memory of four of 16 bits.
    if (widest > kWidestHead && floats) shape = half_of(shape);
  } else {
    if (floats && widest > 64) shape.keys = 32;
    if (problem.seq_q > shape.queries) {
      // Each matrix that is read from k and v then serves two products.
      shape.row_tiles = 2;
      shape.queries = 128;
    }
  }
  return shape;
}

PortableShape backward_shape(const AttentionProblem& problem) {
  const std::int64_t widest = padded(std::max(problem.dim_qk, problem.dim_v));
  const bool floats = needs_floats(problem, Direction::kBackward);
  PortableShape shape;
  shape.element_bytes = floats ? 4 : 2;
  shape.step = 64;
  if (widest <= (floats ? 64 : 128) && problem.seq_q > shape.queries) {
    shape.row_tiles = 2;
    shape.queries = 128;
  }
  if (widest > 128) {
    // The smallest devices have 99 KiB of shared memory for a block.
    shape.warps = 2;
    shape.queries = shape.keys = 32;
    shape.step = shape.part = 16;
  }
  if (floats) {
    shape.step = shape.part = shape.key_step = widest > 64 ? 16 : 32;
  }
  shape.recomputed_delta = !problem.given_deltas && has_few_rows(problem);
  shape.separate_dv = padded(problem.dim_qk) + padded(problem.dim_v) > 256;
  return shape;
}

/// Registers are full without sums of operand gradients. A gradient that is written at once takes none, and a sink's
/// has a kernel of its own.
bool has_sums(std::span<const OperandTarget> targets) {
  return std::ranges::any_of(targets, [](const OperandTarget& target) {
    return target.sum != OperandSum::kElement && target.sum != OperandSum::kSink;
  });
}

class PortableVariant final : public ShapedVariant<PortableShape> {
 public:
  PortableVariant(const PortableShape& shape, bool last, std::shared_ptr<const SharedMaskWork> mask = nullptr)
      : ShapedVariant(shape, std::move(mask)), last_(last) {}

  Prediction time(const Work& work, const DeviceRates& rates) const override {
    const bool forward = work.direction == Direction::kForward;
    return time_from(work, rates, forward ? kForwardTimes : kBackwardTimes, shape().row_tiles == 1);
  }

  bool may_spill() const override { return last_; }

  std::shared_ptr<const Variant> at_sizes_of(const Work& work, const DeviceProperties&) const override {
    const std::vector<PortableShape> shapes = portable_shapes(work.problem.problem, work.direction);
    const bool has_it = !has_sums(work.targets) && std::ranges::find(shapes, shape()) != shapes.end();
    return has_it ? std::make_shared<const PortableVariant>(shape(), shape() == shapes.back()) : nullptr;
  }

 protected:
  CallLayout family_layout(const Work& work) const override {
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

  KernelFiles files(Direction direction) const override {
    if (direction == Direction::kForward) return {{}, {{"backend/kernels/portable/forward.cuh"}}};
    constexpr const char* kBackward = "backend/kernels/portable/backward.cuh";
    KernelFiles files{{{"backend/kernels/shared/derivative.cuh", {"attention_backward_rows"}},
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

Variants variants(const Work& work, const DeviceProperties&, std::vector<UnsupportedReason>&) {
  if (has_sums(work.targets)) return {};
  const auto mask = std::make_shared<const SharedMaskWork>();
  const std::vector<PortableShape> shapes = portable_shapes(work.problem.problem, work.direction);
  Variants found;
  for (const PortableShape& shape : shapes)
    found.push_back(std::make_shared<const PortableVariant>(shape, &shape == &shapes.back(), mask));
  return found;
}

bool has(std::span<const OperandTarget> targets, OperandSum sum) {
  return std::ranges::find(targets, sum, &OperandTarget::sum) != targets.end();
}

/// Adds the kernel of a bias that batches or heads share along queries and keys.
void add_shared(CallLayout& layout, const AttentionProblem& p, const OperandTarget& target,
                const PortableShape& shape) {
  const std::int64_t tiles = tiles_of(p.seq_q, shape.queries) * tiles_of(p.seq_kv, shape.key_step);
  const std::int64_t owners = entries_of(p, target.operand) / (p.seq_q * p.seq_kv);
  const device::SharedElementsStorage storage{static_cast<int>(p.dim_qk), static_cast<int>(p.dim_v), shape.queries,
                                              shape.key_step, shape.element_bytes};
  layout.add_launch({total_kernel(target), owners * tiles, shape.threads(), storage.bytes});
}

}  // namespace

const KernelFamily kPortableFamily{"portable", objections, variants};

std::shared_ptr<const TiledVariant> portable_variant(const PortableShape& shape) {
  return std::make_shared<const PortableVariant>(shape, false);
}

KernelTraits PortableShape::traits() const {
  KernelTraits traits{.name = "portable", .family = 0};
  traits.step = step;
  traits.part = part;
  traits.key_step = key_step;
  traits.separate_dv = separate_dv;
  traits.recomputed_delta = recomputed_delta;
  return traits;
}

std::vector<PortableShape> portable_shapes(const AttentionProblem& problem, Direction direction) {
  PortableShape best = direction == Direction::kForward ? forward_shape(problem) : backward_shape(problem);
  PortableShape smaller = best;
  if (best.row_tiles > 1) {
    smaller.row_tiles = 1;
    smaller.queries /= 2;
    smaller.step = std::min(smaller.step, smaller.queries);
  } else if (direction == Direction::kForward && std::max(problem.dim_qk, problem.dim_v) > kWidestHead) {
    // The smallest devices have 99 KiB of shared memory for a CTA.
    smaller = half_of(best);
    smaller.keys = 16;
  } else if (direction == Direction::kBackward && best.holds_floats()) {
    smaller.step = smaller.part = smaller.key_step = 8;
  }
  if (smaller == best) return {best};
  return {best, smaller};
}

PortableShape portable_shape(const AttentionProblem& problem, Direction direction) {
  return portable_shapes(problem, direction).front();
}

device::PortableKeysStorage portable_keys_storage(const PortableShape& shape, const AttentionProblem& problem) {
  return {static_cast<int>(problem.dim_qk), static_cast<int>(problem.dim_v), shape.keys, shape.step,
          shape.element_bytes};
}

KernelSource operand_source(const compiler::CompiledProblem& problem, std::span<const OperandTarget> targets,
                            const PortableShape& shape) {
  KernelSource source;
  fill_attention(source.holes, {problem, Direction::kBackward, targets}, shape, shape.traits(), Gains::kApart);
  const OperandText text(problem, targets);
  text.fill_tile_sums(source.holes);
  text.fill_totals(source.holes);
  Module files{{"backend/kernels/shared/derivative.cuh", {"attention_backward_rows"}},
               {"backend/kernels/operand_gradients/tile_sums.cuh"},
               {kTotalsFile}};
  const Module states = block_mask_files(problem, Direction::kBackward);
  files.insert(files.end(), states.begin(), states.end());
  source.modules.push_back(std::move(files));
  return source;
}

CallLayout operand_layout(const compiler::CompiledProblem& problem, std::span<const OperandTarget> targets,
                          const PortableShape& shape) {
  const AttentionProblem& p = problem.problem;
  const Work work{problem, Direction::kBackward, targets};
  const std::int64_t heads = p.batch * p.heads_q;
  CallLayout layout = tiled_layout(work, shape, Gains::kApart);
  layout.add_launch(row_terms_launch(work, layout, shape));
  add_sums(layout, p, targets, shape);
  add_clears(layout, p, targets);
  const bool tables = has(targets, OperandSum::kTable);
  if (tables || has(targets, OperandSum::kTotal) || has(targets, OperandSum::kQueries) ||
      has(targets, OperandSum::kElement)) {
    const device::OperandQueriesStorage storage{
        static_cast<int>(p.dim_qk), static_cast<int>(p.dim_v), shape.queries, shape.key_step,
        shape.element_bytes,        shape.threads(),           tables};
    layout.add_launch({"attention_operand_queries", layout.query_tiles * heads, shape.threads(), storage.bytes});
  }
  if (has(targets, OperandSum::kKeys)) {
    layout.add_launch(
        {"attention_operand_keys", layout.key_tiles * heads, shape.threads(), portable_keys_storage(shape, p).bytes});
  }
  for (const OperandTarget& target : targets) {
    if (target.sum == OperandSum::kShared)
      add_shared(layout, p, target, shape);
    else
      add_total(layout, p, target);
  }
  return layout;
}

}  // namespace scoremod::backend::kernels
