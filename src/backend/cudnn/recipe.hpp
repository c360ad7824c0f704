#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/candidate.hpp"
#include "backend/cudnn/graph/device_target.hpp"
#include "backend/cudnn/lowerings.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::cudnn {

/// How a lowering becomes a plan of cuDNN's.
class CudnnRecipe final : public Recipe {
 public:
  CudnnRecipe(const compiler::CompiledProblem& problem, const PlanTask& task, Lowering lowering)
      : problem_(problem), task_(task), lowering_(std::move(lowering)) {}

  BuildResult build(const Target& target) const override;
  std::shared_ptr<const Artifact> load(std::span<const std::byte> bytes, const Target& target) const override;
  ExecutablePlan plan(std::shared_ptr<const Artifact> artifact, const PlanOptions& options) const override;

  const Lowering& lowering() const { return lowering_; }

 private:
  const compiler::CompiledProblem problem_;
  const PlanTask task_;
  const Lowering lowering_;
};

/// A lowering as the planner sees it. The target's pattern table has its patterns' times and says whether they were
/// verified.
Candidate candidate_of(const compiler::CompiledProblem& problem, const PlanTask& task, Lowering lowering,
                       const DeviceTarget& target);

}  // namespace scoremod::backend::cudnn
