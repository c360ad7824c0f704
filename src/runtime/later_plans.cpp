#include "runtime/later_plans.hpp"

#include <algorithm>
#include <deque>
#include <exception>
#include <mutex>
#include <string_view>
#include <utility>

#include "backend/backend.hpp"
#include "base/background_thread.hpp"
#include "base/bytes.hpp"
#include "base/environment.hpp"
#include "base/fail.hpp"
#include "base/fork_mutex.hpp"
#include "problem/canonical_problem.hpp"

namespace scoremod::runtime {
namespace {

/// The last failures of the process, for explain.
class Failures {
 public:
  void add(const AttentionProblem& problem, std::string reason) {
    Bytes key = problem::canonical_bytes(problem);
    const std::lock_guard lock(mutex_);
    all_.emplace_front(std::move(key), std::move(reason));
    if (all_.size() > kMost) all_.pop_back();
  }
  std::string of(const AttentionProblem& problem) const {
    const Bytes key = problem::canonical_bytes(problem);
    const std::lock_guard lock(mutex_);
    for (const auto& [failed, reason] : all_) {
      if (failed == key) return reason;
    }
    return {};
  }

 private:
  static constexpr std::size_t kMost = 64;
  mutable ForkMutex mutex_;
  std::deque<std::pair<Bytes, std::string>> all_;
};

/// Never destroyed: the planning thread may write there while the process ends.
Failures& failures() {
  static auto& made = *new Failures;
  return made;
}

struct LaterPlanning {
  static constexpr auto kAtEnd = BackgroundThread::AtEnd::kLeaves;
};

/// Why the serving plan is not replaced, if no tried plan may be used.
std::string refusals_of(const planner::Prepared& prepared) {
  std::string text;
  for (const UnsupportedReason& reason : prepared.reasons()) text += (text.empty() ? "" : "; ") + to_string(reason);
  return text;
}

}  // namespace

RunningPlans running_plans(const planner::PlannedProblem& planned) {
  const planner::Prepared& prepared = planned.prepared;
  RunningPlans plans;
  const backend::Backend& engine = *prepared.forward.chosen()->engine;
  plans.backend = engine.name();
  plans.forward = prepared.forward_plan;
  plans.backward = prepared.backward_plan;
  plans.backward_reasons = prepared.backward_reasons();
  if (plans.backward) plans.backward_backend = prepared.backward->chosen()->engine->name();
  plans.memory = &engine.memory();
  plans.device = planned.target->ordinal;
  plans.context = planned.target->context;
  return plans;
}

bool serves_new_sizes(const AttentionProblem& problem, const CompileOptions& options) {
  if (options.new_sizes) return *options.new_sizes == NewSizes::kServe;
  const std::string_view text = environment_variable("SCOREMOD_NEW_SIZES");
  if (!text.empty() && text != "wait" && text != "serve")
    fail_argument("SCOREMOD_NEW_SIZES: expected wait or serve, found '", text, "'");
  if (!text.empty()) return text == "serve";
  // Another backend's results have other bits, and autotuning must measure the final plan.
  return !problem.deterministic && !planner::wants_autotune(options);
}

LaterPlans::LaterPlans(compiler::CompiledProblem problem, CompileOptions options, const RunningPlans& served)
    : problem_(std::move(problem)), options_(std::move(options)), context_(served.context) {
  // The thread's own current device is another.
  options_.device = served.device;
}

void LaterPlans::count_call() {
  // Once it is reached, calls only read.
  if (calls_.load(std::memory_order_relaxed) >= kCallsBefore) return;
  if (++calls_ != kCallsBefore) return;
  BackgroundThread::of_process<LaterPlanning>().add([waiting = weak_from_this()] {
    if (const auto wanted = waiting.lock()) wanted->plan();
  });
}

void LaterPlans::plan() {
  std::string reason;
  try {
    const auto planned =
        planner::plan_problem(problem_, options_, planner::Level::kVerified, planner::select(options_));
    const planner::Prepared& prepared = planned.prepared;
    if (!prepared.runs_forward() || (problem_.backward && !prepared.runs_backward())) {
      reason = refusals_of(prepared);
    } else if (planned.target->context.id() != context_.id()) {
      reason = "calls use another CUDA context than the device's own, in which faster plans are built";
    } else {
      plans_ = running_plans(planned);
      return ready_.store(&plans_, std::memory_order_release);
    }
  } catch (const std::exception& error) {
    reason = error.what();
  }
  failures().add(problem_.problem, std::move(reason));
}

void plan_for_all_sizes(compiler::CompiledProblem problem, CompileOptions options,
                        const planner::PlannedProblem& planned) {
  const planner::Considered* forward = planned.prepared.forward.chosen();
  if (forward == nullptr || forward->engine->serves_all_sizes() || !planned.target) return;
  const std::vector<const backend::Backend*>& allowed = planned.selection.backends;
  const auto found = std::ranges::find_if(allowed, &backend::Backend::serves_all_sizes);
  if (found == allowed.end()) return;
  options.backend = (*found)->name();
  options.backends.clear();
  options.device = planned.target->ordinal;
  BackgroundThread::of_process<LaterPlanning>().add([problem = std::move(problem), options = std::move(options)] {
    try {
      planner::plan_problem(problem, options, planner::Level::kVerified, planner::select(options));
    } catch (const std::exception& error) {
      failures().add(problem.problem, error.what());
    }
  });
}

std::string later_failure(const AttentionProblem& problem) { return failures().of(problem); }

}  // namespace scoremod::runtime
