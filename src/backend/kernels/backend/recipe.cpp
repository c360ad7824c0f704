#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <future>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "backend/cuda/device/context.hpp"
#include "backend/cuda/modules/runtime_compiler.hpp"
#include "backend/kernels/backend/kernels_backend.hpp"
#include "backend/kernels/loading/attention_plans.hpp"
#include "backend/kernels/shared/tile_shape.hpp"
#include "backend/kernels/workspace/call.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::kernels {

namespace {

/// To be raised when build() refuses for other reasons.
constexpr int kRefusalRevision = 1;

struct Compiled {
  std::string image, report;
};

Compiled compiled(const std::string& text, int compute_capability, cuda::Instructions instructions) {
  Compiled made;
  made.image = cuda::compile_kernels(text, compute_capability, &made.report, instructions);
  return made;
}

/// All modules, side by side: the first in this thread.
std::vector<Compiled> compiled(const std::vector<std::string>& texts, int compute_capability,
                               cuda::Instructions instructions) {
  std::vector<std::future<Compiled>> others;
  for (std::size_t i = 1; i < texts.size(); ++i) {
    others.push_back(std::async(std::launch::async, [&texts, i, compute_capability, instructions] {
      return compiled(texts[i], compute_capability, instructions);
    }));
  }
  std::vector<Compiled> made{compiled(texts.front(), compute_capability, instructions)};
  for (std::future<Compiled>& other : others) made.push_back(other.get());
  return made;
}

bool has_strides(const AttentionProblem& problem) {
  const auto has = [](const std::optional<TensorLayout>& tensor) { return tensor && tensor->strides; };
  return problem.q.strides || problem.k.strides || problem.v.strides || problem.o.strides || has(problem.d_o) ||
         has(problem.dq) || has(problem.dk) || has(problem.dv);
}

/// Whether two problems of one structure, of which `other` has these branches, have the same.
bool has_branches(const AttentionProblem& problem, const AttentionProblem& other, const Branches& branches) {
  if (has_strides(problem) || has_strides(other)) return branches_of(problem) == branches;
  // Each stride of a dense tensor is a multiple of its head dim, which is of the structure.
  return (problem.heads_q == problem.heads_kv) == (other.heads_q == other.heads_kv);
}

}  // namespace

Images::Images(std::span<const std::byte> bytes) {
  const auto* first = reinterpret_cast<const std::uint8_t*>(bytes.data());
  try {
    for (const nlohmann::json& module : nlohmann::json::from_cbor(first, first + bytes.size())) {
      const auto& image = module.get_binary();
      modules_.emplace_back(image.begin(), image.end());
    }
  } catch (const nlohmann::json::exception& error) {
    fail_environment("these stored kernels can't be used: ", error.what(), "; delete them and compile them anew");
  }
}

std::vector<std::byte> Images::serialize() const {
  nlohmann::json list = nlohmann::json::array();
  for (const std::string& module : modules_)
    list.push_back(nlohmann::json::binary(std::vector<std::uint8_t>(module.begin(), module.end())));
  const std::vector<std::uint8_t> cbor = nlohmann::json::to_cbor(list);
  const auto bytes = std::as_bytes(std::span(cbor));
  return {bytes.begin(), bytes.end()};
}

std::shared_ptr<LoadedModules> Images::loaded(std::optional<std::uint64_t> context) const {
  if (!context) context = cuda::current_context();
  const std::scoped_lock lock(mutex_);
  std::shared_ptr<LoadedModules>& modules = loaded_[*context];
  if (modules == nullptr || modules->keeps_much()) modules = std::make_shared<LoadedModules>(modules_);
  return modules;
}

KernelsRecipe::KernelsRecipe(compiler::CompiledProblem problem, Direction direction, const KernelFamily& family,
                             std::shared_ptr<const Variant> variant, std::vector<OperandTarget> targets)
    : problem_(std::move(problem)),
      branches_(branches_of(problem_.problem)),
      direction_(direction),
      family_(family),
      variant_(std::move(variant)),
      targets_(std::move(targets)) {}

BuildResult KernelsRecipe::build(const Target& target) const {
  const std::vector<std::string> texts = render_modules(source());
  std::string report;
  std::vector<std::string> images;
  for (Compiled& module : compiled(texts, target.device.compute_capability, variant_->instructions())) {
    report += module.report;
    images.push_back(std::move(module.image));
  }
  const auto refused = [&](const auto&... why) {
    return BuildResult{nullptr, concat(variant_->label(work()), ": ", why...)};
  };
  if (serializes_products(report)) return refused("ptxas serializes WGMMAs");
  const std::int64_t spill_bytes = register_spill_bytes(report);
  if (spill_bytes > variant_->harmless_spill() && !variant_->may_spill())
    return refused(spill_bytes, " bytes of registers spill");
  return {std::make_shared<const Images>(std::move(images)), ""};
}

std::optional<CallLayout> KernelsRecipe::layout_at_sizes_of(const compiler::CompiledProblem& problem,
                                                            const DeviceProperties& device) const {
  // Which gradients are summed beside dq, dk and dv hangs on the sizes.
  if (!targets_.empty() || !has_branches(problem.problem, problem_.problem, branches_)) return std::nullopt;
  const Work work{problem, direction_, {}};
  if (!family_.objections(work, &device).empty()) return std::nullopt;
  std::shared_ptr<const Variant> same = variant_->at_sizes_of(work, device);
  if (!same) same = same_variant(work, device);
  if (!same) return std::nullopt;
  CallLayout layout = same->layout(work);
  if (!memory_objections(layout.launches(), device).empty()) return std::nullopt;
  return layout;
}

std::optional<ExecutablePlan> KernelsRecipe::plan_at_sizes_of(const compiler::CompiledProblem& problem,
                                                              const DeviceProperties& device, const Artifact& artifact,
                                                              const PlanOptions& options) const {
  std::optional<CallLayout> layout = layout_at_sizes_of(problem, device);
  if (!layout) return std::nullopt;
  return plan_of(problem, std::move(*layout), artifact, options);
}

std::optional<ExecutablePlan> KernelsRecipe::plan_on_few_blocks(const Artifact& artifact) const {
  const std::shared_ptr<const Variant> few = variant_->on_few_ctas();
  if (!few) return std::nullopt;
  return plan_of(problem_, few->layout(work()), artifact, {});
}

std::shared_ptr<const Variant> KernelsRecipe::same_variant(const Work& work, const DeviceProperties& device) const {
  std::vector<UnsupportedReason> left_out;
  for (auto& variant : family_.variants(work, device, left_out))
    if (variant->is_same(*variant_)) return std::move(variant);
  return nullptr;
}

void KernelsRecipe::write_refusal_terms(CanonicalWriter& to) const {
  to.integer(kRefusalRevision).integer(variant_->harmless_spill()).boolean(variant_->may_spill());
  to.integer(cuda::compiler_version());
}

std::shared_ptr<const Artifact> KernelsRecipe::load(std::span<const std::byte> bytes, const Target&) const {
  return std::make_shared<const Images>(bytes);
}

ExecutablePlan KernelsRecipe::plan(std::shared_ptr<const Artifact> artifact, const PlanOptions& options) const {
  ExecutablePlan plan = plan_of(problem_, variant_->layout(work()), *artifact, options);
  plan.note = variant_->label(work());
  return plan;
}

ExecutablePlan KernelsRecipe::plan_of(const compiler::CompiledProblem& problem, CallLayout layout,
                                      const Artifact& artifact, const PlanOptions& options) const {
  std::shared_ptr<LoadedModules> modules = dynamic_cast<const Images&>(artifact).loaded(options.context);
  KernelCall call(problem, direction_, std::move(layout));
  ExecutablePlan plan;
  if (direction_ == Direction::kForward)
    plan.forward = forward_plan(std::move(call), std::move(modules));
  else
    plan.backward = backward_plan(std::move(call), std::move(modules));
  return plan;
}

// Both functions search without <regex>, of which GCC 12 warns with a sanitizer (GCC bug 105562).

bool serializes_products(const std::string& report) {
  for (std::size_t at = report.find("wgmma"); at != std::string::npos; at = report.find("wgmma", at + 1)) {
    const std::size_t serialized = report.find("serialized", at);
    if (serialized < report.find('\n', at)) return true;
  }
  return false;
}

std::int64_t register_spill_bytes(const std::string& report) {
  constexpr std::string_view kWords = " bytes spill ";
  std::int64_t most = 0;
  for (std::size_t at = report.find(kWords); at != std::string::npos; at = report.find(kWords, at + 1)) {
    std::size_t begin = at;
    while (begin > 0 && report[begin - 1] >= '0' && report[begin - 1] <= '9') --begin;
    std::int64_t bytes = 0;
    std::from_chars(report.data() + begin, report.data() + at, bytes);
    most = std::max(most, bytes);
  }
  return most;
}

}  // namespace scoremod::backend::kernels
