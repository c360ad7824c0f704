#include "check/check_subject.hpp"

#include <algorithm>
#include <chrono>
#include <future>

#include "backend/reference/naive_attention.hpp"
#include "base/fail.hpp"
#include "check/check_memory.hpp"
#include "check/rounding_band.hpp"
#include "problem/implied_operands.hpp"
#include "verification/compare_output.hpp"

namespace scoremod::checking {
namespace {

namespace reference = backend::reference;

/// Bytes that may be anything, as a tensor.
StridedTensor workspace_tensor(std::size_t bytes) {
  return {"workspace", DType::kBool, {static_cast<std::int64_t>(bytes)}, {1}};
}

/// Runs one direction with a guarded workspace full of NaN; returns the seconds that it took.
template <class Run>
double timed_run(const backend::MemorySpace& space, std::size_t workspace_bytes, const char* what, CheckReport& report,
                 const Run& run) {
  std::optional<GuardedBuffer> workspace;
  Buffer scratch;
  if (workspace_bytes > 0) {
    workspace.emplace(workspace_tensor(workspace_bytes), space).expect_output();
    workspace->send();
    scratch = {workspace->address(), workspace->bytes()};
  }
  const auto start = std::chrono::steady_clock::now();
  run(scratch);
  space.wait(space.own_stream());
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  if (workspace) workspace->fetch();
  if (const auto damage = workspace ? workspace->damage() : std::nullopt) {
    report.memory_problems.push_back(concat(what, ": ", *damage));
  }
  return elapsed.count();
}

void collect_damage(CheckMemory& memory, const char* what, CheckReport& report) {
  for (const GuardedBuffer* buffer : memory.all()) {
    if (const auto damage = buffer->damage()) report.memory_problems.push_back(concat(what, ": ", *damage));
  }
}

void run_subject(const Subject& subject, const AttentionProblem& completed, CallOptions call, CheckMemory& memory,
                 CheckReport& report) {
  call.stream = subject.memory->own_stream();
  memory.o.expect_output();
  memory.lse.expect_output();
  if (memory.max_logit) memory.max_logit->expect_output();
  if (memory.amax_o) memory.amax_o->expect_output();
  memory.send();
  report.forward_seconds = timed_run(*subject.memory, subject.forward_workspace_bytes, "forward", report,
                                     [&](Buffer workspace) { subject.forward(memory.forward_args(call), workspace); });
  memory.fetch();
  collect_damage(memory, "forward", report);
  if (!completed.backward) return;
  if (completed.given_deltas) memory.give_deltas(completed, report.seed, *subject.memory);
  memory.o.hold_as_is();
  memory.lse.hold_as_is();
  if (memory.max_logit) memory.max_logit->hold_as_is();
  if (memory.amax_o) memory.amax_o->hold_as_is();
  for (GuardedBuffer* output : {&memory.dq, &memory.dk, &memory.dv}) output->expect_output();
  for (std::vector<GuardedBuffer>* outputs : {&memory.d_operands, &memory.amax_gradients})
    for (GuardedBuffer& output : *outputs) output.expect_output();
  memory.send();
  report.backward_seconds =
      timed_run(*subject.memory, subject.backward_workspace_bytes, "backward", report,
                [&](Buffer workspace) { subject.backward(memory.backward_args(call), workspace); });
  memory.fetch();
  collect_damage(memory, "backward", report);
}

/// One evaluation of everything.
template <class Real>
struct Results {
  reference::ForwardResult<Real> forward;
  reference::BackwardResult<Real> backward;
};

template <class Real>
Results<Real> evaluate(const compiler::CompiledProblem& compiled, const reference::InputTensors& inputs,
                       const backend::CallParameters& parameters, const reference::Progress& progress,
                       const backend::ForwardRounding& rounding = {}) {
  const auto half = [&](double start) {
    return [&progress, start](double fraction) { progress(start + fraction / 2); };
  };
  Results<Real> results{reference::forward<Real>(compiled, inputs, parameters, half(0), {.forward = rounding}), {}};
  if (compiled.backward) results.backward = reference::backward<Real>(compiled, inputs, parameters, half(0.5));
  return results;
}

/// An output's values in the dense order of its memory, from those of the problem's batches, heads and positions.
template <class Real>
std::vector<Real> in_memory_order(const StridedTensor& memory, const StridedTensor& placed,
                                  const std::vector<Real>& values) {
  if (placed.rows.empty()) return values;
  std::vector<Real> at_offsets(memory.bytes() / size_of(memory.dtype)), ordered;
  placed.for_each_offset([&](std::int64_t number, std::int64_t offset) {
    at_offsets[static_cast<std::size_t>(offset)] = values[static_cast<std::size_t>(number)];
  });
  memory.for_each_offset(
      [&](std::int64_t, std::int64_t offset) { ordered.push_back(at_offsets[static_cast<std::size_t>(offset)]); });
  return ordered;
}

std::vector<OutputCheck> compare_all(const CheckMemory& memory, const AttentionProblem& problem,
                                     std::span<const void* const> operands, const Results<double>& oracle,
                                     const Results<float>& plain, const RoundingBand& band) {
  using problem::TensorRole;
  std::vector<OutputCheck> checks;
  const auto compare = [&](const GuardedBuffer& buffer, const std::vector<double>& t, const std::vector<float>& p,
                           const std::vector<double>& b) {
    checks.push_back(verification::compare_output(buffer.tensor(), {buffer.values(), t, p, b}));
  };
  const auto compare_rows = [&](TensorRole role, const GuardedBuffer& buffer, const std::vector<double>& t,
                                const std::vector<float>& p, const std::vector<double>& b) {
    const StridedTensor placed = problem::placed_tensor(problem, role, operands);
    compare(buffer, in_memory_order(buffer.tensor(), placed, t), in_memory_order(buffer.tensor(), placed, p),
            in_memory_order(buffer.tensor(), placed, b));
  };
  compare_rows(TensorRole::kO, memory.o, oracle.forward.o, plain.forward.o, band.forward.o);
  compare_rows(TensorRole::kLse, memory.lse, oracle.forward.lse, plain.forward.lse, band.forward.lse);
  if (memory.max_logit) {
    compare_rows(TensorRole::kLse, *memory.max_logit, oracle.forward.max_logit, plain.forward.max_logit,
                 band.forward.max_logit);
  }
  if (memory.amax_o) compare(*memory.amax_o, oracle.forward.amax_o, plain.forward.amax_o, band.forward.amax_o);
  if (!problem.backward) return checks;
  compare_rows(TensorRole::kDQ, memory.dq, oracle.backward.dq, plain.backward.dq, band.backward.dq);
  compare_rows(TensorRole::kDK, memory.dk, oracle.backward.dk, plain.backward.dk, band.backward.dk);
  compare_rows(TensorRole::kDV, memory.dv, oracle.backward.dv, plain.backward.dv, band.backward.dv);
  if (problem.amax_gradients) {
    const reference::BackwardResult<double>&t = oracle.backward, &b = band.backward;
    const reference::BackwardResult<float>& p = plain.backward;
    compare(memory.amax_gradients[0], t.amax_dq, p.amax_dq, b.amax_dq);
    compare(memory.amax_gradients[1], t.amax_dk, p.amax_dk, b.amax_dk);
    compare(memory.amax_gradients[2], t.amax_dv, p.amax_dv, b.amax_dv);
  }
  for (const std::uint32_t i : memory.with_gradient) {
    compare(memory.d_operands[i], oracle.backward.d_operands[i], plain.backward.d_operands[i],
            band.backward.d_operands[i]);
  }
  return checks;
}

}  // namespace

Subject subject_of(const Attention& attention, const compiler::CompiledProblem& compiled) {
  const backend::Backend& backend = backend::find_backend(attention.backend());
  Subject subject;
  subject.backend = backend.name();
  subject.memory = &backend.memory();
  subject.function_error = backend.function_error();
  subject.forward_rounding = backend.forward_rounding(compiled);
  if (!attention.backward_backend().empty()) {
    const backend::Backend& of_backward = backend::find_backend(attention.backward_backend());
    subject.backward_backend = of_backward.name();
    subject.function_error = std::max(subject.function_error, of_backward.function_error());
    subject.backward_reads_lse = of_backward.backward_reads_lse();
  }
  subject.forward_workspace_bytes = attention.forward_workspace_bytes();
  subject.backward_workspace_bytes = attention.backward_workspace_bytes();
  subject.forward = [&attention](const ForwardArgs& args, Buffer workspace) { attention.forward(args, workspace); };
  subject.backward = [&attention](const BackwardArgs& args, Buffer workspace) { attention.backward(args, workspace); };
  return subject;
}

CheckReport check_subject(const compiler::CompiledProblem& compiled, const Subject& subject,
                          const ProblemInputs& inputs, const CheckOptions& options) {
  const AttentionProblem& problem = compiled.problem;
  const auto progress = [&](const char* stage, double start, double share) {
    return [&options, stage, start, share](double fraction) {
      if (options.on_progress) options.on_progress(stage, start + share * fraction);
    };
  };
  CheckReport report;
  report.backend = subject.backend;
  report.backward_backend = subject.backward_backend;
  report.seed = options.seed;
  CheckMemory memory(problem, inputs, options.seed, *subject.memory);
  progress("running the backend", 0, 0)(0);
  run_subject(subject, problem::with_implied_operands(problem), options.call, memory, report);

  const backend::CallParameters parameters{options.call.scale.value_or(problem.effective_scale()), options.call.offsets,
                                           nullptr, options.call.dropout_seed, options.call.dropout_offset};
  const reference::InputTensors tensors = memory.reference_inputs();
  const ErrorSources sources{subject.function_error, subject.backward_reads_lse, subject.forward_rounding};
  auto band = std::async(std::launch::async, [&] { return rounding_band(compiled, tensors, parameters, sources); });
  const auto oracle = evaluate<double>(compiled, tensors, parameters, progress("computing the oracle", 0.1, 0.4));
  const auto plain = evaluate<float>(compiled, tensors, parameters, progress("computing the tolerance", 0.5, 0.45),
                                     subject.forward_rounding);
  report.outputs = compare_all(memory, problem, tensors.operands, oracle, plain, band.get());
  progress("done", 1, 0)(1);
  return report;
}

}  // namespace scoremod::checking
