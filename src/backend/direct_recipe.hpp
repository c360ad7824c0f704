#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "backend/candidate.hpp"

namespace scoremod::backend {

/// A recipe of plans that are made at once, without anything to build or to keep.
class DirectRecipe final : public Recipe {
 public:
  using Make = std::function<ExecutablePlan(const PlanOptions&)>;
  using MakeAtSizes = std::function<ExecutablePlan(const compiler::CompiledProblem&, const PlanOptions&)>;

  /// `make_at_sizes` gives the plan of other sizes; without it each size has a recipe of its own.
  explicit DirectRecipe(Make make, MakeAtSizes make_at_sizes = nullptr)
      : make_(std::move(make)), make_at_sizes_(std::move(make_at_sizes)) {}

  BuildResult build(const Target&) const override { return {std::make_shared<Nothing>(), ""}; }
  std::shared_ptr<const Artifact> load(std::span<const std::byte>, const Target&) const override {
    return std::make_shared<Nothing>();
  }
  ExecutablePlan plan(std::shared_ptr<const Artifact>, const PlanOptions& options) const override {
    return make_(options);
  }
  std::optional<ExecutablePlan> plan_at_sizes_of(const compiler::CompiledProblem& problem, const DeviceProperties&,
                                                 const Artifact&, const PlanOptions& options) const override {
    if (!make_at_sizes_) return std::nullopt;
    return make_at_sizes_(problem, options);
  }

 private:
  class Nothing final : public Artifact {
   public:
    std::vector<std::byte> serialize() const override { return {}; }
  };

  Make make_;
  MakeAtSizes make_at_sizes_;
};

}  // namespace scoremod::backend
