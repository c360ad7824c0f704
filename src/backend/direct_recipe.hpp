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

  explicit DirectRecipe(Make make) : make_(std::move(make)) {}

  BuildResult build(const Target&) const override { return {std::make_shared<Nothing>(), ""}; }
  std::shared_ptr<const Artifact> load(std::span<const std::byte>, const Target&) const override {
    return std::make_shared<Nothing>();
  }
  ExecutablePlan plan(std::shared_ptr<const Artifact>, const PlanOptions& options) const override {
    return make_(options);
  }

 private:
  class Nothing final : public Artifact {
   public:
    std::vector<std::byte> serialize() const override { return {}; }
  };

  Make make_;
};

}  // namespace scoremod::backend
