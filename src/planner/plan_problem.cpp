#include "planner/plan_problem.hpp"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "scoremod/context_lost.hpp"
#include "scoremod/error.hpp"

#include "analysis/finite_mask.hpp"
#include "backend/unsupported.hpp"
#include "base/environment.hpp"
#include "base/fail.hpp"
#include "base/timeline.hpp"
#include "plans/planned_directions.hpp"

namespace scoremod::planner {
namespace {

using compiler::CompiledProblem;

constexpr std::size_t kDefaultWorkspaceLimit = std::size_t{8} << 30;

/// The host's plans are not held to the limit.
std::size_t most_workspace(const CompileOptions& options, MemoryKind memory) {
  return memory == MemoryKind::kHost ? SIZE_MAX : workspace_limit(options);
}

Request request_for(const CompileOptions& options, Level level, const Selection& selection,
                    const std::vector<const backend::Backend*>& backends) {
  Request request;
  request.level = level;
  request.backends = backends;
  request.in_order = selection.in_order;
  request.autotune = wants_autotune(options);
  request.max_workspace = most_workspace(options, selection.memory);
  request.options.threads = options.threads;
  return request;
}

/// The current device; nothing, and the reason, where there is none.
std::optional<backend::Target> target_here(const backend::MemorySpace& memory, UnsupportedReason& reason) {
  try {
    backend::Target target;
    const TimedStep step("describe the device");
    target.ordinal = memory.current_device();
    target.device = memory.describe();
    target.context = memory.begin_context();
    return target;
  } catch (const ContextLost&) {
    throw;  // none of this memory's backends can run
  } catch (const Error& error) {
    // No driver, no runtime or no device.
    if (error.code() != ErrorCode::kEnvironment) throw;
    reason = backend::unsupported(backend::Rule::kNoDevice, error.what());
    return std::nullopt;
  }
}

/// Whether the target's context could not be made; says why not.
bool has_no_context(const backend::Target& target, UnsupportedReason& reason) {
  try {
    target.context.id();
    return false;
  } catch (const ContextLost&) {
    throw;  // none of this memory's backends can run
  } catch (const Error& error) {
    reason = backend::unsupported(backend::Rule::kNoDevice, error.what());
    return error.code() == ErrorCode::kEnvironment;
  }
}

/// The calling thread's context, or one that is being made; nothing where there is no driver, runtime or device.
std::optional<backend::TargetContext> context_here(const backend::MemorySpace& memory) {
  try {
    return memory.begin_context();
  } catch (const ContextLost&) {
    throw;  // none of this memory's backends can run
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kEnvironment) throw;
    return std::nullopt;
  }
}

void add_first(TaskAnswer& answer, const UnsupportedReason& reason) {
  for (EngineReasons& engine : answer.reasons) engine.reasons.insert(engine.reasons.begin(), reason);
}

}  // namespace

bool wants_autotune(const CompileOptions& options) {
  const bool asked = environment_flag("SCOREMOD_AUTOTUNE", false);
  return options.autotune || asked;
}

std::size_t workspace_limit(const CompileOptions& options) {
  if (options.max_workspace) return *options.max_workspace;
  const std::string_view text = environment_variable("SCOREMOD_MAX_WORKSPACE");
  if (text.empty()) return kDefaultWorkspaceLimit;
  std::size_t limit = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), limit);
  if (error != std::errc() || end != text.data() + text.size()) {
    fail_argument("SCOREMOD_MAX_WORKSPACE: expected a number of bytes, found '", text, "'");
  }
  return limit;
}

PlannedProblem plan_problem(const CompiledProblem& problem, const CompileOptions& options, Level level,
                            Selection selection, bool ready_only) {
  PlannedProblem planned{std::move(selection), {}, {}};
  if (planned.selection.backends.empty()) return planned;
  const auto backends = with_companions(planned.selection.backends);
  const backend::MemorySpace& memory = backends.front()->memory();
  Request request = request_for(options, level, planned.selection, backends);
  request.ready_only = ready_only;
  request.autotune = request.autotune && !ready_only;
  std::optional<backend::DeviceScope> current;
  UnsupportedReason no_device;
  try {
    if (options.device) current.emplace(memory, *options.device);
    planned.target = target_here(memory, no_device);
  } catch (const ContextLost&) {
    throw;  // none of this memory's backends can run
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kEnvironment) throw;
    no_device = backend::unsupported(backend::Rule::kNoDevice, error.what());
  }
  if (planned.target) {
    request.target = &*planned.target;
    try {
      planned.prepared = prepare(problem, request);
      return planned;
    } catch (const Error&) {
      if (!has_no_context(*planned.target, no_device)) throw;
      planned.target.reset();
    }
  }
  request.level = Level::kStatic;
  request.target = nullptr;
  planned.prepared = prepare(problem, request);
  add_first(planned.prepared.forward, no_device);
  if (planned.prepared.backward) add_first(*planned.prepared.backward, no_device);
  return planned;
}

std::optional<PlansLike> plan_like(const Considered& forward, const Considered* backward,
                                   const CompiledProblem& problem, const CompileOptions& options,
                                   const backend::DeviceProperties& device) {
  const backend::MemorySpace& memory = forward.engine->memory();
  std::optional<backend::DeviceScope> current;
  if (options.device) current.emplace(memory, *options.device);
  // Plans are loaded into it.
  const auto context = context_here(memory);
  if (!context) return std::nullopt;
  const std::size_t most = most_workspace(options, memory.kind());
  const auto plan_of = [&](const Considered& chosen) -> std::optional<backend::ExecutablePlan> {
    auto plan =
        chosen.candidate.recipe->plan_at_sizes_of(problem, device, *chosen.artifact, {options.threads, context->id()});
    if (plan && plan->workspace_bytes() > most) return std::nullopt;
    return plan;
  };
  auto forward_plan = plan_of(forward);
  if (!forward_plan) return std::nullopt;
  PlansLike made{std::move(forward_plan->forward), nullptr, *context};
  if (backward != nullptr) {
    auto backward_plan = plan_of(*backward);
    if (!backward_plan) return std::nullopt;
    made.backward = std::move(backward_plan->backward);
    plans::count_planned_backward();
  }
  plans::count_planned_forward();
  return made;
}

PlannedProblem plan_problem_elsewhere(const CompiledProblem& problem, const CompileOptions& options, Level level,
                                      Selection selection, const backend::DeviceProperties& device,
                                      bool every_candidate) {
  PlannedProblem planned{std::move(selection), {}, {}};
  if (planned.selection.backends.empty()) return planned;
  planned.target = backend::Target{device, 0, 0, false};
  const auto backends = with_companions(planned.selection.backends);
  if (level != Level::kStatic) {
    for (const backend::Backend* backend : backends) backend->prepare_building_elsewhere();
  }
  Request request = request_for(options, level, planned.selection, backends);
  request.target = &*planned.target;
  request.every_candidate = every_candidate;
  planned.prepared = prepare(problem, request);
  return planned;
}

PlannedProblem plan_problem_on(const std::optional<backend::DeviceProperties>& elsewhere,
                               const CompiledProblem& problem, const CompileOptions& options, Level level,
                               Selection selection, bool every_candidate) {
  if (!elsewhere || selection.memory == MemoryKind::kHost)
    return plan_problem(problem, options, level, std::move(selection));
  return plan_problem_elsewhere(problem, options, std::min(level, Level::kBuilt), std::move(selection), *elsewhere,
                                every_candidate);
}

Support support_of(const PlannedProblem& planned, const backend::Backend& engine, const CompiledProblem& problem) {
  const Prepared& prepared = planned.prepared;
  Support support;
  support.backend = engine.name();
  support.memory = engine.memory().kind();
  support.forward_supported = prepared.runs_forward();
  support.reasons = prepared.reasons();
  support.supported = support.reasons.empty();
  support.notes = prepared.all_notes();
  const auto mask = analysis::finite_mask(problem.forward.program);
  if (support.supported && problem.problem.backward && engine.backward_reads_lse() && mask) {
    support.notes.push_back(concat(
        "the program masks scores with the finite value ", *mask,
        ": gradients of rows that have only such scores are wrong, because this backend's backward starts from a "
        "float32 LSE, which at that size loses the number of keys; to mask, use keep or -inf, or run the cpu "
        "or the reference backend"));
  }
  return support;
}

}  // namespace scoremod::planner
