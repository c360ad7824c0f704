#include "support/toy_family/toy_family.hpp"

#include <string_view>

#include "backend/kernels/shared/tiled_variant.hpp"
#include "backend/unsupported.hpp"
#include "base/fail.hpp"

namespace scoremod::embedded {
extern const std::string_view kToyForward;
}  // namespace scoremod::embedded

namespace scoremod::test {
namespace {

using namespace backend;           // NOLINT(google-build-using-namespace)
using namespace backend::kernels;  // NOLINT(google-build-using-namespace)

constexpr std::int64_t kLongest = 100;

class ToyVariant final : public Variant {
 public:
  bool is_same(const Variant& other) const override { return dynamic_cast<const ToyVariant*>(&other) != nullptr; }
  explicit ToyVariant(int warps) : warps_(warps) {}

  KernelSource source(const Work& work) const override {
    TileShape shape;
    shape.warps = warps_;
    shape.queries = 16 * warps_;
    KernelSource source;
    // No launch of layout() fills relative-position tables, so that the program must not read them.
    fill_attention(source.holes, work, shape, KernelTraits{}, Gains::kApart);
    source.modules = {{{"toy/forward.cuh"}}};
    return source;
  }
  CallLayout layout(const Work& work) const override {
    const AttentionProblem& p = work.problem.problem;
    const std::size_t threads = 32 * static_cast<std::size_t>(warps_);
    CallLayout layout;
    layout.add_launch(
        {"toy_forward", p.batch * p.heads_q * p.seq_q, static_cast<int>(threads), 2 * threads * sizeof(float)});
    return layout;
  }
  /// Far below what any other kernel takes, so that it is chosen.
  Prediction time(const Work&, const DeviceRates&) const override { return {1e-6 * warps_, "a toy's own"}; }
  std::string label(const Work&) const override { return concat("toy kernels of ", warps_, " warps"); }
  void write(CanonicalWriter& out) const override { out.text("toy").integer(warps_); }

 private:
  int warps_;
};

std::vector<UnsupportedReason> objections(const Work& work, const DeviceProperties* device) {
  std::vector<UnsupportedReason> reasons = tiled_objections(work, device);
  if (work.problem.problem.seq_q > kLongest) {
    reasons.push_back(unsupported(Rule::kEngineRefused, concat("toy kernels: expected at most ", kLongest,
                                                               " queries, found ", work.problem.problem.seq_q)));
  }
  return reasons;
}

Variants variants(const Work& work, const DeviceProperties&, std::vector<UnsupportedReason>&) {
  if (work.direction == Direction::kBackward) return {};
  return {toy_variant(4), toy_variant(2)};
}

}  // namespace

const KernelFamily kToyFamily{"toy", objections, variants};

std::shared_ptr<const Variant> toy_variant(int warps) { return std::make_shared<const ToyVariant>(warps); }

std::span<const cuda::KernelFile> toy_files() {
  const std::string_view text = embedded::kToyForward.substr(embedded::kToyForward.find("SCOREMOD_KERNEL"));
  static const cuda::KernelFile files[] = {{"toy/forward.cuh", text, "toy", {"backend/kernels/shared/softmax.cuh"}}};
  return files;
}

}  // namespace scoremod::test
