#include "backend/kernels/recipe.hpp"

#include <algorithm>
#include <regex>
#include <utility>

#include "backend/cuda/runtime_compiler.hpp"
#include "backend/kernels/attention_plans.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::kernels {

std::vector<std::byte> Image::serialize() const {
  const auto bytes = std::as_bytes(std::span(text_));
  return {bytes.begin(), bytes.end()};
}

KernelsRecipe::KernelsRecipe(compiler::CompiledProblem problem, Direction direction, const TileShape& shape,
                             std::string source, bool may_spill)
    : problem_(std::move(problem)),
      direction_(direction),
      shape_(shape),
      source_(std::move(source)),
      may_spill_(may_spill) {}

BuildResult KernelsRecipe::build(const Target& target) const {
  std::string report;
  auto image = std::make_shared<const Image>(
      cuda::compile_kernels(source_, target.device.compute_capability, &report, shape_.instructions()));
  if (serializes_products(report)) {
    return {nullptr, concat("tiles of ", shape_.queries, " by ", shape_.keys,
                            ": ptxas has warpgroups wait for each product of matrices")};
  }
  const std::int64_t spilled = spilled_bytes(report);
  if (spilled > kHarmlessSpill && !may_spill_) {
    return {nullptr, concat("tiles of ", shape_.queries, " by ", shape_.keys, ": the kernels keep ", spilled,
                            " bytes of registers in memory")};
  }
  return {std::move(image), ""};
}

std::shared_ptr<const Artifact> KernelsRecipe::load(std::span<const std::byte> bytes, const Target&) const {
  return std::make_shared<const Image>(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

ExecutablePlan KernelsRecipe::plan(std::shared_ptr<const Artifact> artifact, const PlanOptions&) const {
  const std::string& image = dynamic_cast<const Image&>(*artifact).text();
  ExecutablePlan plan;
  if (direction_ == Direction::kForward)
    plan.forward = forward_plan(problem_, shape_, image);
  else
    plan.backward = backward_plan(problem_, shape_, image);
  plan.note = concat("kernels with tiles of ", shape_.queries, " queries by ", shape_.keys, " keys");
  return plan;
}

bool serializes_products(const std::string& report) {
  static const std::regex kSerialized("wgmma.*serialized");
  return std::regex_search(report, kSerialized);
}

std::int64_t spilled_bytes(const std::string& report) {
  static const std::regex kSpill("([0-9]+) bytes spill (stores|loads)");
  std::int64_t most = 0;
  for (std::sregex_iterator match(report.begin(), report.end(), kSpill), end; match != end; ++match)
    most = std::max<std::int64_t>(most, std::stoll((*match)[1]));
  return most;
}

}  // namespace scoremod::backend::kernels
