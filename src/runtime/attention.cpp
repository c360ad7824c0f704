#include "scoremod/attention.hpp"

#include <new>

#include "backend/backend.hpp"
#include "backend/support_of.hpp"
#include "base/fail.hpp"
#include "compiler/pipeline.hpp"
#include "runtime/call_tensors.hpp"
#include "runtime/workspace.hpp"

namespace scoremod {
namespace {

using backend::Backend;

compiler::CompiledProblem compile_problem(const AttentionProblem& problem, const CompileOptions& options) {
  if (options.threads < 0) fail_argument("expected 0 threads (one for each core) or more, found ", options.threads);
  compiler::PipelineOptions pipeline;
  pipeline.disabled = options.disabled_passes;
  return compiler::compile(problem, pipeline);
}

/// The one backend that the options name.
const Backend& named_backend(const CompileOptions& options) {
  const Backend& named = backend::find_backend(options.backend);
  const MemoryKind kind = named.memory().kind();
  if (options.memory && *options.memory != kind) {
    fail_argument("backend '", named.name(), "' takes ", to_string(kind), " memory, found ", to_string(*options.memory),
                  " asked for; leave the memory out or name another backend");
  }
  return named;
}

/// The backends that the options allow, in the order of preference.
std::vector<const Backend*> candidates(const CompileOptions& options) {
  if (!options.backend.empty()) return {&named_backend(options)};
  std::vector<const Backend*> fitting;
  for (const Backend* candidate : backend::backends()) {
    if (candidate->memory().kind() == options.memory.value_or(MemoryKind::kHost)) fitting.push_back(candidate);
  }
  return fitting;
}

/// Whom support() asks: without a name or a memory, everyone.
std::vector<const Backend*> asked(const CompileOptions& options) {
  if (!options.backend.empty() || options.memory) return candidates(options);
  const auto all = backend::backends();
  return {all.begin(), all.end()};
}

std::vector<Support> ask(const std::vector<const Backend*>& backends, const compiler::CompiledProblem& compiled,
                         std::optional<int> device) {
  std::vector<Support> answers;
  for (const Backend* candidate : backends) {
    std::optional<backend::DeviceScope> current;
    if (device) current.emplace(candidate->memory(), *device);
    answers.push_back(backend::support_of(*candidate, compiled));
  }
  return answers;
}

[[noreturn]] void fail_no_backend(const std::vector<Support>& answers) {
  std::string text = "no backend runs this problem";
  if (answers.empty()) text += ": this build of scoremod has none for the memory that was asked for";
  for (const Support& answer : answers) {
    text += concat("; ", answer.backend, ": ");
    for (std::size_t i = 0; i < answer.reasons.size(); ++i) text += concat(i == 0 ? "" : ", ", answer.reasons[i]);
  }
  fail_unsupported(text);
}

const Backend& choose(const compiler::CompiledProblem& compiled, const CompileOptions& options) {
  const std::vector<const Backend*> backends = candidates(options);
  const std::vector<Support> answers = ask(backends, compiled, options.device);
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (answers[i].supported) return *backends[i];
  }
  fail_no_backend(answers);
}

/// Runs body; the machine's being out of memory becomes the error that it is.
template <class Body>
auto with_memory(const char* what, const Body& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    fail_environment("out of memory in ", what,
                     ": the system refused an allocation; use a smaller problem or free memory");
  }
}

}  // namespace

struct Attention::State {
  AttentionProblem problem;
  std::string backend;
  const backend::MemorySpace* memory = nullptr;
  int device = 0;
  std::unique_ptr<backend::ForwardPlan> forward;
  std::unique_ptr<backend::BackwardPlan> backward;
};

std::vector<Support> support(const AttentionProblem& problem, const CompileOptions& options) {
  return with_memory("support", [&] { return ask(asked(options), compile_problem(problem, options), options.device); });
}

Attention Attention::compile(const AttentionProblem& problem, const CompileOptions& options) {
  return with_memory("compile", [&] {
    const compiler::CompiledProblem compiled = compile_problem(problem, options);
    const Backend& chosen = choose(compiled, options);
    const backend::PlanOptions plan_options{options.threads};
    auto state = std::make_unique<State>();
    state->problem = problem;
    state->backend = chosen.name();
    state->memory = &chosen.memory();
    const backend::DeviceScope current(*state->memory, options.device);
    state->device = state->memory->current_device();
    state->forward = chosen.plan_forward(compiled, plan_options);
    if (problem.backward) state->backward = chosen.plan_backward(compiled, plan_options);
    return Attention(std::move(state));
  });
}

Attention::Attention(std::unique_ptr<State> state) : state_(std::move(state)) {}
Attention::Attention(Attention&&) noexcept = default;
Attention& Attention::operator=(Attention&&) noexcept = default;
Attention::~Attention() = default;

const AttentionProblem& Attention::problem() const { return state_->problem; }
const std::string& Attention::backend() const { return state_->backend; }
int Attention::device() const { return state_->device; }
MemoryKind Attention::memory() const { return state_->memory->kind(); }
std::size_t Attention::alignment() const { return state_->memory->alignment(); }
std::size_t Attention::forward_workspace_bytes() const { return state_->forward->workspace_bytes(); }

std::size_t Attention::backward_workspace_bytes() const {
  return state_->backward == nullptr ? 0 : state_->backward->workspace_bytes();
}

void Attention::forward(const ForwardArgs& args, Buffer workspace) const {
  with_memory("forward", [&] {
    const backend::DeviceScope current(*state_->memory, state_->device);
    const std::size_t bytes = forward_workspace_bytes();
    const runtime::ForwardCall call = runtime::check_call(state_->problem, args, workspace, bytes, *state_->memory);
    const runtime::Workspace scratch(*state_->memory, workspace, bytes);
    state_->forward->execute(call.tensors, call.parameters, scratch.span());
  });
}

void Attention::backward(const BackwardArgs& args, Buffer workspace) const {
  if (state_->backward == nullptr) {
    fail_argument("this problem was compiled for the forward only: set its field backward before it is compiled");
  }
  with_memory("backward", [&] {
    const backend::DeviceScope current(*state_->memory, state_->device);
    const std::size_t bytes = backward_workspace_bytes();
    const runtime::BackwardCall call = runtime::check_call(state_->problem, args, workspace, bytes, *state_->memory);
    const runtime::Workspace scratch(*state_->memory, workspace, bytes);
    state_->backward->execute(call.tensors, call.parameters, scratch.span());
  });
}

}  // namespace scoremod
