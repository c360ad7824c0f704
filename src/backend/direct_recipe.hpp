#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "backend/candidate.hpp"

namespace scoremod::backend {

/// A recipe of plans that are made at once, without anything to build or to keep.
class DirectRecipe final : public Recipe {
 public:
  using Make = std::function<ExecutablePlan(const PlanOptions&)>;
  using Resize = std::function<std::shared_ptr<const Recipe>(const compiler::CompiledProblem&)>;

  /// `resize` gives the recipe of other sizes; without it each size has one of its own.
  explicit DirectRecipe(Make make, Resize resize = nullptr) : make_(std::move(make)), resize_(std::move(resize)) {}

  BuildResult build(const Target&) const override { return {std::make_shared<Nothing>(), ""}; }
  std::shared_ptr<const Artifact> load(std::span<const std::byte>, const Target&) const override {
    return std::make_shared<Nothing>();
  }
  ExecutablePlan plan(std::shared_ptr<const Artifact>, const PlanOptions& options) const override {
    return make_(options);
  }
  std::shared_ptr<const Recipe> at_sizes_of(const compiler::CompiledProblem& problem, const Target&) const override {
    return resize_ ? resize_(problem) : nullptr;
  }

 private:
  class Nothing final : public Artifact {
   public:
    std::vector<std::byte> serialize() const override { return {}; }
  };

  Make make_;
  Resize resize_;
};

}  // namespace scoremod::backend
