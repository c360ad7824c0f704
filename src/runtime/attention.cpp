#include "scoremod/attention.hpp"

#include <utility>

#include "scoremod/context_lost.hpp"

#include "backend/backend.hpp"
#include "base/fail.hpp"
#include "base/moved_from.hpp"
#include "base/timeline.hpp"
#include "planner/plan_problem.hpp"
#include "problem/empty_sizes.hpp"
#include "problem/implied_operands.hpp"
#include "problem/validate_sizes.hpp"
#include "runtime/attention_shared.hpp"
#include "runtime/call_tensors.hpp"
#include "runtime/captured_call.hpp"
#include "runtime/empty_calls.hpp"
#include "runtime/known_structures.hpp"
#include "runtime/later_plans.hpp"
#include "runtime/with_memory.hpp"
#include "runtime/workspace.hpp"

namespace scoremod {
namespace {

using backend::Backend;

/// Every backend's reasons against a task, including those of its candidates.
std::string reasons_text(const planner::TaskAnswer& answer) {
  std::string text;
  for (const planner::EngineReasons& engine : answer.reasons) {
    std::string reasons;
    const auto add = [&](const UnsupportedReason& reason) {
      if (reasons.find(reason.text) == std::string::npos) reasons += (reasons.empty() ? "" : ", ") + to_string(reason);
    };
    for (const planner::Considered& candidate : answer.considered) {
      if (candidate.engine == engine.engine && candidate.refusal) add(*candidate.refusal);
    }
    for (const UnsupportedReason& reason : engine.reasons) add(reason);
    if (!reasons.empty()) text += concat("; ", engine.engine->name(), ": ", reasons);
  }
  return text;
}

/// The names of the backends that can be chosen for a memory, with commas between them.
std::string names_of_memory(MemoryKind memory) {
  std::string names;
  for (const Backend* backend : backend::backends()) {
    if (backend->is_companion() || backend->memory().kind() != memory) continue;
    names += concat(names.empty() ? "" : ", ", backend->name());
  }
  return names;
}

[[noreturn]] void fail_no_backend(const planner::PlannedProblem& planned) {
  const planner::Selection& selection = planned.selection;
  if (selection.backends.empty()) {
    const char* memory = to_string(selection.memory);
    const std::string names = names_of_memory(selection.memory);
    if (names.empty())
      fail_unsupported("no backend runs this problem: this build of scoremod has none for ", memory, " memory");
    fail_unsupported("no backend runs this problem: expected one that runs in ", memory,
                     " memory, where the tensors are; found none among those chosen by ", selection.decided_by,
                     "; choose among ", names, ", or move the tensors");
  }
  fail_unsupported("no backend runs this problem", reasons_text(planned.prepared.forward));
}

[[noreturn]] void fail_no_backward(const std::vector<UnsupportedReason>& reasons) {
  std::string text = "no backend runs the backward of this problem";
  for (const UnsupportedReason& reason : reasons) text += "; " + to_string(reason);
  fail_unsupported(text);
}

/// The ready plans, if they do everything that the problem wants; nothing otherwise.
std::optional<planner::PlannedProblem> plan_ready(const compiler::CompiledProblem& problem,
                                                  const CompileOptions& options, planner::Selection selection) {
  auto planned = planner::plan_problem(problem, options, planner::Level::kVerified, std::move(selection), true);
  const planner::Prepared& prepared = planned.prepared;
  if (!planned.target || !prepared.runs_forward() || (problem.backward && !prepared.runs_backward()))
    return std::nullopt;
  return planned;
}

/// The plans that do all of a problem; no backend where several do, or where a faster one is not ready yet and none
/// that serves all sizes.
runtime::Fastest fastest_of(const planner::PlannedProblem& planned) {
  const planner::Prepared& prepared = planned.prepared;
  const bool serves = prepared.left_for_later();
  const planner::Considered& forward = *prepared.forward.chosen();
  const planner::Considered* backward = prepared.backward ? prepared.backward->chosen() : nullptr;
  const bool is_alone = backward == nullptr || backward->engine == forward.engine;
  // Plans of operands' gradients beside a backward's own are chosen by the sizes.
  const bool is_whole = !prepared.fused_backward && !prepared.operand_gradients;
  if (is_alone && is_whole && forward.engine->serves_all_sizes()) {
    runtime::Fastest fastest{forward.engine, std::make_shared<const planner::Considered>(forward), serves};
    if (backward != nullptr) fastest.backward = std::make_shared<const planner::Considered>(*backward);
    fastest.device = std::make_shared<const backend::DeviceProperties>(planned.target->device);
    return fastest;
  }
  if (serves || !is_alone) return {};
  return {forward.engine};
}

/// The device that the options mean; nothing where there is none, which planning says.
std::optional<int> device_of(const CompileOptions& options, const planner::Selection& selection) {
  if (options.device || selection.backends.empty()) return options.device;
  try {
    return selection.backends.front()->memory().current_device();
  } catch (const ContextLost&) {
    throw;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kEnvironment) throw;
    return std::nullopt;
  }
}

/// The plans of what was the fastest at about these sizes on this device; null where these sizes want others.
std::unique_ptr<runtime::RunningPlans> plans_like(const runtime::Fastest& fastest,
                                                  const compiler::CompiledProblem& problem,
                                                  const CompileOptions& options, int device) {
  const planner::Considered& forward = *fastest.forward;
  auto like = planner::plan_like(forward, fastest.backward.get(), problem, options, *fastest.device);
  if (!like) return nullptr;
  auto plans = std::make_unique<runtime::RunningPlans>();
  plans->backend = forward.engine->name();
  if (fastest.backward) plans->backward_backend = fastest.backward->engine->name();
  plans->forward = std::move(like->forward);
  plans->backward = std::move(like->backward);
  plans->memory = &forward.engine->memory();
  plans->device = device;
  plans->context = std::move(like->context);
  plans->candidates = {fastest.forward, fastest.backward};
  return plans;
}

/// Plans that run at once; null where nothing is ready.
struct ReadyPlans {
  std::unique_ptr<runtime::RunningPlans> plans;
  bool serves = false;  ///< until a faster one is built
};

ReadyPlans ready_plans(const std::optional<planner::PlannedProblem>& planned) {
  if (!planned) return {};
  ReadyPlans ready;
  ready.plans = std::make_unique<runtime::RunningPlans>(runtime::running_plans(*planned));
  ready.serves = planned->prepared.left_for_later();
  return ready;
}

/// The plans of all that may run it, or of what was the fastest at about these sizes.
ReadyPlans ready_plans(const compiler::CompiledProblem& problem, const CompileOptions& options,
                       const planner::Selection& selection, const std::optional<int>& device,
                       runtime::FastestPlans& known) {
  if (selection.backends.empty()) return {};
  if (!device) return ready_plans(plan_ready(problem, options, selection));
  const runtime::SizeClass size_class = runtime::size_class(problem.problem, selection, *device);
  const runtime::Fastest found = known.find(size_class);
  if (found.forward) {
    if (auto plans = plans_like(found, problem, options, *device)) return {std::move(plans), found.serves};
  }
  if (found.backend != nullptr && !found.serves && selection.backends.size() > 1) {
    planner::Selection alone = selection;
    alone.backends = {found.backend};
    ReadyPlans ready = ready_plans(plan_ready(problem, options, std::move(alone)));
    if (ready.plans && !ready.serves) return ready;
  }
  const auto planned = plan_ready(problem, options, selection);
  if (!planned) return {};
  const runtime::Fastest fastest = fastest_of(*planned);
  if (fastest.backend != nullptr) known.remember(size_class, fastest);
  ReadyPlans ready = ready_plans(planned);
  ready.plans->candidates = {fastest.forward, fastest.backward};
  return ready;
}

/// The fastest plans, built and verified.
std::unique_ptr<runtime::RunningPlans> awaited_plans(const compiler::CompiledProblem& problem,
                                                     const CompileOptions& options, const planner::Selection& selection,
                                                     bool may_serve, const runtime::KnownStructure& known) {
  const auto planned = planner::plan_problem(problem, options, planner::Level::kVerified, selection);
  // If two sizes of a structure waited, it will have more.
  if (may_serve && ++known.waits == 2) runtime::plan_for_all_sizes(problem, options, planned);
  if (!planned.prepared.runs_forward()) fail_no_backend(planned);
  return std::make_unique<runtime::RunningPlans>(runtime::running_plans(planned));
}

}  // namespace

struct Attention::State {
  AttentionProblem problem;
  bool is_empty = false;  ///< no backend runs its calls; the plans are those of its twin
  std::unique_ptr<const runtime::RunningPlans> served;
  std::shared_ptr<runtime::LaterPlans> later;  ///< null if nothing is built in the background

  const runtime::RunningPlans& running() const {
    const runtime::RunningPlans* faster = later == nullptr ? nullptr : later->ready();
    return faster == nullptr ? *served : *faster;
  }
  /// Selects the plan for a call with this workspace: its size may have been asked for before there were faster plans.
  template <class Plan>
  const std::shared_ptr<const Plan>& plan_for(const std::shared_ptr<const Plan> runtime::RunningPlans::*direction,
                                              Buffer workspace) const {
    if (later != nullptr) later->count_call();
    const std::shared_ptr<const Plan>& plan = running().*direction;
    const bool is_too_small = workspace.data != nullptr && workspace.bytes < plan->workspace_bytes();
    return is_too_small ? (*served).*direction : plan;
  }
};

const char* to_string(NewSizes new_sizes) { return new_sizes == NewSizes::kWait ? "wait" : "serve"; }

std::string to_string(const UnsupportedReason& reason) {
  return concat(reason.direction, reason.direction.empty() ? "" : ": ", reason.text, reason.remedy.empty() ? "" : "; ",
                reason.remedy);
}

Attention Attention::compile(const AttentionProblem& given, const CompileOptions& options) {
  return compile(given, options, nullptr, 0);
}

/// known_for_all, known_device: those that an OpenAttention knows already; null and without a meaning of any other
/// problem.
Attention Attention::compile(AttentionProblem given, const CompileOptions& options, const Shared* known_for_all,
                             int known_device) {
  return runtime::with_memory("compile", [&] {
    std::optional<TimedStep> step;
    if (known_for_all == nullptr) step.emplace("attention");
    std::optional<AttentionProblem> twin;
    if (problem::is_empty(given)) twin = problem::nonempty_twin(given);
    AttentionProblem& problem = twin ? *twin : given;
    std::shared_ptr<const runtime::KnownStructure> known;
    if (known_for_all != nullptr) known = known_for_all->structure;
    if (known != nullptr)
      problem::validate_at_sizes(problem);
    else
      known = runtime::known_structure(problem, options);
    std::optional<Shared> own;  // an invalid problem is refused before options are
    if (known_for_all == nullptr)
      own = Shared{known, planner::select(options), runtime::serves_new_sizes(problem, options)};
    const auto& [structure, selection, serves] = own ? *own : *known_for_all;
    std::optional<int> device = known_device;
    // A plan that has to be awaited asks for its device there.
    if (own) device = serves ? device_of(options, selection) : std::nullopt;
    const SequenceLengths lengths = given.lengths;
    compiler::CompiledProblem compiled = compiler::at_sizes_of(std::move(problem), known->compiled);
    ReadyPlans ready;
    if (serves) ready = ready_plans(compiled, options, selection, device, known->fastest);
    if (!ready.plans) ready.plans = awaited_plans(compiled, options, selection, serves, *known);
    auto state = std::make_unique<State>();
    state->is_empty = twin.has_value();
    if (ready.serves) state->later = std::make_shared<runtime::LaterPlans>(compiled, options, *ready.plans);
    state->served = std::move(ready.plans);
    // It has the specs of fields' operands, but not the sizes of an empty call.
    if (twin)
      state->problem = problem::with_implied_specs(given);
    else
      state->problem = std::move(compiled.problem);
    state->problem.program = known->declared;
    state->problem.lengths = lengths;
    return Attention(std::move(state));
  });
}

Attention::Attention(std::unique_ptr<State> state) : state_(std::move(state)) {}
Attention::Attention(Attention&&) noexcept = default;
Attention& Attention::operator=(Attention&&) noexcept = default;
Attention::~Attention() = default;

const Attention::State& Attention::state() const { return held_by(state_, "Attention"); }

const AttentionProblem& Attention::problem() const { return state().problem; }
const std::string& Attention::backend() const { return state().running().backend; }
const std::string& Attention::backward_backend() const { return state().running().backward_backend; }
const std::vector<UnsupportedReason>& Attention::backward_reasons() const { return state().running().backward_reasons; }
int Attention::device() const { return state().served->device; }
MemoryKind Attention::memory() const { return state().served->memory->kind(); }
std::size_t Attention::alignment() const { return state().served->memory->alignment(); }
std::size_t Attention::forward_workspace_bytes() const {
  return state().is_empty ? 0 : state().running().forward->workspace_bytes();
}

std::size_t Attention::backward_workspace_bytes() const {
  const auto& backward = state().running().backward;
  return backward == nullptr || state().is_empty ? 0 : backward->workspace_bytes();
}

void Attention::forward(const ForwardArgs& args, Buffer workspace) const {
  const State& own = state();
  const backend::MemorySpace& memory = *own.served->memory;
  const backend::DeviceScope current(memory, own.served->device);
  runtime::run_call("forward", memory, args.options.stream, [&](runtime::RanPlan ran) {
    if (own.is_empty) return runtime::run_empty(own.problem, args, workspace, memory);
    const auto& plan = own.plan_for(&runtime::RunningPlans::forward, workspace);
    const std::size_t bytes = plan->workspace_bytes();
    const runtime::ForwardCall call = runtime::check_call(own.problem, args, workspace, bytes, memory);
    const runtime::Workspace scratch(memory, workspace, bytes, args.options.stream);
    plan->execute(call.tensors, call.parameters, scratch.span());
    if (ran != nullptr) *ran = plan;
  });
}

void Attention::backward(const BackwardArgs& args, Buffer workspace) const {
  const State& own = state();
  const runtime::RunningPlans& served = *own.served;
  if (served.backward == nullptr && !served.backward_reasons.empty()) fail_no_backward(served.backward_reasons);
  if (served.backward == nullptr) {
    fail_argument("this problem was compiled for the forward only: set its field backward before it is compiled");
  }
  const backend::MemorySpace& memory = *served.memory;
  const backend::DeviceScope current(memory, served.device);
  runtime::run_call("backward", memory, args.options.stream, [&](runtime::RanPlan ran) {
    if (own.is_empty) return runtime::run_empty(own.problem, args, workspace, memory);
    const auto& plan = own.plan_for(&runtime::RunningPlans::backward, workspace);
    const std::size_t bytes = plan->workspace_bytes();
    const runtime::BackwardCall call = runtime::check_call(own.problem, args, workspace, bytes, memory);
    const runtime::Workspace scratch(memory, workspace, bytes, args.options.stream);
    plan->execute(call.tensors, call.parameters, scratch.span());
    if (ran != nullptr) *ran = plan;
  });
}

}  // namespace scoremod
