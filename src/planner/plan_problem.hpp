#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "scoremod/attention.hpp"

#include "planner/prepare.hpp"
#include "planner/selection.hpp"

namespace scoremod::planner {

/// A problem as it was planned under a caller's options.
struct PlannedProblem {
  Selection selection;
  std::optional<backend::Target> target;  ///< absent where the memory has no device here
  Prepared prepared;
};

/// Plans for the current device of the selection's memory, or the one that the options name. Without a device, its
/// reasons include every one that the problem alone gives. `ready_only` as in Request, and nothing is measured then.
/// Throws as prepare() does.
PlannedProblem plan_problem(const compiler::CompiledProblem& problem, const CompileOptions& options, Level level,
                            Selection selection, bool ready_only = false);

/// Plans of a problem's directions, and the context that they belong to.
struct PlansLike {
  std::shared_ptr<const backend::ForwardPlan> forward;
  std::shared_ptr<const backend::BackwardPlan> backward;  ///< null without a backward
  backend::TargetContext context;
};

/// The plans of a problem by the candidates of one backend that were chosen for its structure at other sizes. Without a
/// backward `backward` is null, else it writes all gradients. They run on the device that the options name or that is
/// current; `device` describes it, and the candidates were chosen for it. Artifacts and verdicts are those candidates',
/// and no others are looked at. Nothing where these sizes want another artifact or need too large a workspace, or where
/// no context can be made.
std::optional<PlansLike> plan_like(const Considered& forward, const Considered* backward,
                                   const compiler::CompiledProblem& problem, const CompileOptions& options,
                                   const backend::DeviceProperties& device);

/// Plans for a device elsewhere: Level::kStatic or kBuilt. `every_candidate` as in Request.
PlannedProblem plan_problem_elsewhere(const compiler::CompiledProblem& problem, const CompileOptions& options,
                                      Level level, Selection selection, const backend::DeviceProperties& device,
                                      bool every_candidate = false);

/// As plan_problem_elsewhere() where a device elsewhere is given, up to Level::kBuilt, and the selection is not of the
/// host's backends; else as plan_problem().
PlannedProblem plan_problem_on(const std::optional<backend::DeviceProperties>& elsewhere,
                               const compiler::CompiledProblem& problem, const CompileOptions& options, Level level,
                               Selection selection, bool every_candidate = false);

/// Each backend's own answer, as support() and explain() give it.
Support support_of(const PlannedProblem& planned, const backend::Backend& engine,
                   const compiler::CompiledProblem& problem);

/// Whether candidates are to be measured: the option, or the environment variable SCOREMOD_AUTOTUNE.
bool wants_autotune(const CompileOptions& options);

/// The most scratch memory that a call may need: the option, the environment variable SCOREMOD_MAX_WORKSPACE, or 8 GiB.
/// Throws Error(kInvalidArgument) for another value of the variable.
std::size_t workspace_limit(const CompileOptions& options);

}  // namespace scoremod::planner
