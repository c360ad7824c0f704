#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "scoremod/attention.hpp"

#include "backend/plan.hpp"
#include "planner/plan_problem.hpp"

namespace scoremod::runtime {

/// The plans that calls of an attention run, of both directions, and where they run.
struct RunningPlans {
  std::string backend, backward_backend;  ///< the second is empty without a backward
  std::vector<UnsupportedReason> backward_reasons;
  std::shared_ptr<const backend::ForwardPlan> forward;
  std::shared_ptr<const backend::BackwardPlan> backward;
  const backend::MemorySpace* memory = nullptr;
  int device = 0;  ///< its ordinal
  backend::TargetContext context;
  /// Other sizes of the structure may be planned by them while these plans are there: see FastestPlans.
  std::array<std::shared_ptr<const planner::Considered>, 2> candidates;
};
RunningPlans running_plans(const planner::PlannedProblem& planned);

/// Whether a call runs a ready plan at once if a faster one has to be built or verified first.
bool serves_new_sizes(const AttentionProblem& problem, const CompileOptions& options);

/// Plans that are made in the background while others serve.
class LaterPlans : public std::enable_shared_from_this<LaterPlans> {
 public:
  /// For the device and the context of `served`. Nothing is planned before kCallsBefore calls: a growing cache has
  /// other sizes by the time that a plan is built.
  LaterPlans(compiler::CompiledProblem problem, CompileOptions options, const RunningPlans& served);

  /// Counts a call. After kCallsBefore of them a thread of the process plans the problem without Request::ready_only.
  /// Nothing more is done once nobody holds this.
  void count_call();
  static constexpr int kCallsBefore = 64;

  /// Null until they are verified; from then on the same.
  const RunningPlans* ready() const { return ready_.load(std::memory_order_acquire); }

 private:
  void plan();

  const compiler::CompiledProblem problem_;
  CompileOptions options_;
  const backend::TargetContext context_;
  std::atomic<int> calls_ = 0;
  RunningPlans plans_;  ///< written before ready_, and never again
  std::atomic<const RunningPlans*> ready_ = nullptr;
};

/// Has a thread of the process build and verify a plan that serves all sizes of the problem, for the next sizes. Does
/// nothing if a backend with such plans was planned already, or none may be chosen.
void plan_for_all_sizes(compiler::CompiledProblem problem, CompileOptions options,
                        const planner::PlannedProblem& planned);

/// Why background plans for this problem failed in this process; empty if none did.
std::string later_failure(const AttentionProblem& problem);

}  // namespace scoremod::runtime
