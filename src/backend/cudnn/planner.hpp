#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/cudnn/direction_plan.hpp"

namespace scoremod::backend::cudnn {

/// What there is for a task: a plan, or every reason why there is none.
struct DirectionAnswer {
  std::shared_ptr<const DirectionPlan> plan;
  std::vector<std::string> reasons;
  std::vector<std::string> notes;  ///< what the plan consists of, and which candidates were passed over and why
};

struct PlannerOptions {
  /// Decides which forms are right; by default the form table of the current device. Tests plant wrong ones.
  FormFilter allowed;
};

/// Lowers, builds and verifies: the first candidate lowering that cuDNN builds and that computes the right thing on the
/// current device. Candidates are the fastest forms first, then the same without the forms that a slower one can take
/// the place of. Throws Error(kEnvironment) when there is no device or the build fails for another reason than that
/// cuDNN does not support it.
DirectionAnswer plan_direction(const compiler::CompiledProblem& problem, const PlanTask& task,
                               const PlannerOptions& options = {});

}  // namespace scoremod::backend::cudnn
