#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "backend/candidate.hpp"

namespace scoremod::test {

/// A recipe whose builds are all refused, in so many bytes. Counts them.
class RefusingRecipe final : public backend::Recipe {
 public:
  explicit RefusingRecipe(std::size_t bytes = 2) : bytes_(bytes) {}
  backend::BuildResult build(const backend::Target&) const override {
    ++builds;
    return {nullptr, std::string(bytes_, 'x')};
  }
  std::shared_ptr<const backend::Artifact> load(std::span<const std::byte>, const backend::Target&) const override {
    return nullptr;
  }
  backend::ExecutablePlan plan(std::shared_ptr<const backend::Artifact>, const backend::PlanOptions&) const override {
    return {};
  }

  mutable std::atomic<int> builds{0};

 private:
  std::size_t bytes_;
};

}  // namespace scoremod::test
