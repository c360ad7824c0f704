#include "backend/kernels/float8/family.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "backend/kernels/family.hpp"
#include "backend/kernels/hopper/family.hpp"
#include "backend/unsupported.hpp"
#include "base/canonical_bytes.hpp"
#include "base/fail.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::kernels {

namespace device {
#include "backend/kernels/float8/storage.cuh"
}  // namespace device

namespace {

constexpr int kMostStages = 4, kTileRows = 128;
/// Numbers of a step of a WGMMA, and the rows of v^T that a TMA load brings.
constexpr std::int64_t kStepNumbers = 32;
/// The accumulators of the widest heads of v, and of half a tile's product, fit into the registers beside scores. Tiles
/// of the widest heads of q and k fit into shared memory.
constexpr std::int64_t kWidestOfV = 128, kWidestOfQk = 256;
/// A device cuts off each of the 32 products of a step, and the sum before it, 13 bits below the largest one. Such
/// errors of terms of either sign stay below 2^-12 of the magnitudes. Weights are e4m3 numbers, whose largest is about
/// 2^8 and whose smallest ones are multiples of 2^-9.
constexpr ForwardRounding kRounding{0x1p-12, 0x1p-4, 0x1p-18};
/// Tiles take 0.92 of the time of the Hopper forward of 16 bits: 0.88 to 0.93 full and 0.90 to 0.97 causal, at head dim
/// 128 on an H100.
constexpr TiledTimes kFloat8Times{0.765 * 0.92, 0.075, 0.29, 1.03, 0.96, 0.008, 1};
/// The part of the memory's bandwidth that the pass over v reaches.
constexpr double kReachedBandwidth = 0.7;

device::Float8ForwardStorage storage_of(const Float8Shape& shape, const AttentionProblem& problem) {
  return {static_cast<int>(problem.dim_qk), static_cast<int>(problem.dim_v), shape.queries, shape.keys, shape.stages};
}

class Float8Variant final : public ShapedVariant<Float8Shape> {
 public:
  using ShapedVariant::ShapedVariant;

  Prediction time(const Work& work, const DeviceRates& rates) const override {
    Prediction predicted = time_from(work, rates, kFloat8Times, false);
    const double values = static_cast<double>(problem::bytes_of(work.problem.problem, problem::TensorRole::kV));
    predicted.milliseconds += 2 * values / (kReachedBandwidth * rates.bytes_per_ms);
    predicted.source += "; FP8 products take 0.92 of the time of 16 bits";
    return predicted;
  }
  std::string label(const Work& work) const override { return concat(TiledVariant::label(work), ", FP8 products"); }
  cuda::Instructions instructions() const override { return cuda::Instructions::kOfArchitecture; }
  std::shared_ptr<const Variant> at_sizes_of(const Work&, const DeviceProperties&) const override {
    return float8_variant(shape());
  }

 protected:
  CallLayout family_layout(const Work& work) const override {
    const AttentionProblem& p = work.problem.problem;
    CallLayout layout = tiled_layout(work, shape());
    layout.add_transposed_values(p, std::int64_t{layout.key_tiles} * shape().keys);
    const device::TransposeStorage transpose{shape().keys, static_cast<int>(p.dim_v)};
    layout.add_launch({"float8_transpose_values", layout.key_tiles * p.batch * p.heads_kv, device::kTransposeThreads,
                       transpose.bytes});
    layout.add_launch({"float8_forward", layout.query_work_tiles * p.heads_q, shape().threads(),
                       float8_shared_bytes(shape(), p), true});
    return layout;
  }

  KernelFiles files(Direction) const override {
    return {{{"backend/kernels/float8/tiles.cuh", {"float8_transpose_values"}}},
            {{"backend/kernels/float8/forward.cuh", {"float8_forward"}}}};
  }

  void fill(Holes& holes, const Work& work) const override {
    constexpr std::string_view kTiles = "backend/kernels/float8/tiles.cuh";
    fill_hopper_settings(holes, work.problem.problem, HopperShape{shape()}, 1);
    holes.set("product", "");
    std::string products;
    CanonicalWriter from;
    for (const std::int64_t columns : std::set<std::int64_t>{shape().keys, work.problem.problem.dim_v / 2}) {
      products += product_text(kTiles, "float8_product", columns, "e4m3.e4m3");
      from.integer(columns);
    }
    holes.set_long("float8_product", std::move(products), from.written());
  }
};

UnsupportedReason reason(Rule rule, const std::string& expected, const std::string& found) {
  return unsupported(rule, concat("FP8 products: expected ", expected, ", found ", found));
}

void add_dtype_reasons(std::vector<UnsupportedReason>& reasons, const AttentionProblem& p) {
  if (p.dtype != DType::kE4M3) reasons.push_back(reason(Rule::kDtype, "q, k and v in e4m3", to_string(p.dtype)));
  const DType output = problem::dtype_of(p, problem::TensorRole::kO);
  if (is_float8(output)) reasons.push_back(reason(Rule::kOutputDtype, "o in f32, f16 or bf16", to_string(output)));
  if (p.amax_o) reasons.push_back(reason(Rule::kOutputDtype, "no amax_o", "it"));
}

void add_layout_reasons(std::vector<UnsupportedReason>& reasons, const AttentionProblem& p) {
  if (p.tokens_q || p.tokens_kv) reasons.push_back(reason(Rule::kRagged, "dense tensors", "varlen ones"));
  if (p.paged) reasons.push_back(reason(Rule::kPaged, "dense keys and values", "paged ones"));
  if (p.dim_qk % kStepNumbers != 0 || p.dim_v % kStepNumbers != 0 || p.dim_qk > kWidestOfQk || p.dim_v > kWidestOfV) {
    reasons.push_back(reason(Rule::kHeadDim,
                             concat("head dims that are multiples of ", kStepNumbers, ", of q and k up to ",
                                    kWidestOfQk, " and of v up to ", kWidestOfV),
                             concat(p.dim_qk, " and ", p.dim_v)));
  }
  for (const problem::TensorRole role : {problem::TensorRole::kQ, problem::TensorRole::kK}) {
    const device::TensorArgument tensor = tensor_argument(p, role, nullptr);
    const problem::TensorShape rows = problem::memory_shape_of(p, role);
    const bool repeats = (rows.batch > 1 && tensor.batch == 0) || (rows.heads > 1 && tensor.head == 0) ||
                         (rows.sequence > 1 && tensor.row == 0);
    if (tensor.aligned != 0 && !repeats) continue;
    reasons.push_back(reason(Rule::kCopyAlignment,
                             concat("rows of ", to_string(role),
                                    " of their own that lie densely, with strides that are multiples of 16 elements"),
                             "another layout"));
  }
}

std::vector<UnsupportedReason> objections(const Work& work, const DeviceProperties* device) {
  const AttentionProblem& p = work.problem.problem;
  std::vector<UnsupportedReason> reasons = tiled_objections(work, device, Float8::kAll);
  if (!reasons.empty()) return reasons;
  reasons = float8_objections(p);
  if (device != nullptr && device->compute_capability != kHopperCapability) {
    reasons.push_back(reason(Rule::kEngineRefused, "compute capability 9.0",
                             concat(device->compute_capability / 10, ".", device->compute_capability % 10)));
  }
  return reasons;
}

Variants variants(const Work& work, const DeviceProperties&, std::vector<UnsupportedReason>&) {
  return {float8_variant(float8_shape(work.problem.problem))};
}

}  // namespace

const KernelFamily kFloat8Family{"float8", objections, variants, true, kRounding};

KernelTraits Float8Shape::traits() const {
  KernelTraits traits{.name = "hopper", .family = 4};
  traits.producers = kProducers;
  traits.stages = stages;
  traits.key_bytes = 1;
  return traits;
}

std::shared_ptr<const TiledVariant> float8_variant(const Float8Shape& shape) {
  return std::make_shared<const Float8Variant>(shape);
}

std::size_t float8_shared_bytes(const Float8Shape& shape, const AttentionProblem& problem) {
  return storage_of(shape, problem).bytes;
}

Float8Shape float8_shape(const AttentionProblem& problem) {
  Float8Shape shape;
  shape.warps = 8;
  shape.queries = shape.keys = kTileRows;
  shape.blocks = 1;
  for (shape.stages = kMostStages; float8_shared_bytes(shape, problem) > kHopperSharedBytes;) --shape.stages;
  return shape;
}

std::vector<UnsupportedReason> float8_objections(const AttentionProblem& problem) {
  std::vector<UnsupportedReason> reasons;
  // A backward makes rows' deltas from o, which is off by the roundings of the weights here.
  if (problem.backward) reasons.push_back(reason(Rule::kEngineRefused, "a problem without a backward", "one with it"));
  add_dtype_reasons(reasons, problem);
  add_layout_reasons(reasons, problem);
  return reasons;
}

}  // namespace scoremod::backend::kernels
