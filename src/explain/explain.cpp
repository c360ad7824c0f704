#include "scoremod/explain.hpp"

#include <algorithm>
#include <utility>

#include "backend/backend.hpp"
#include "backend/form_choices.hpp"
#include "backend/support_of.hpp"
#include "base/fail.hpp"
#include "compiler/pipeline.hpp"
#include "compiler/work_estimate.hpp"
#include "ir/builder.hpp"

namespace scoremod {
namespace explaining {
namespace {

compiler::CompiledProblem compile_with_steps(const AttentionProblem& problem, const ExplainOptions& options,
                                             std::vector<CompilerStep>* steps) {
  compiler::PipelineOptions pipeline;
  pipeline.disabled = options.compile.disabled_passes;
  pipeline.on_step = [&](const compiler::StepReport& report) {
    steps->push_back({report.name, report.microseconds, options.step_programs ? report.program : ""});
  };
  return compiler::compile(problem, pipeline);
}

/// The lines of a program that compute one bool node.
std::string text_of(const Program& program, NodeId node) {
  ir::Builder builder;
  for (const OperandDecl& decl : program.operands()) builder.declare(decl);
  std::vector<NodeId> copies;
  for (NodeId id = 0; id <= node; ++id) {
    std::vector<NodeId> args;
    for (const NodeId arg : ir::args_of(program.nodes()[id])) args.push_back(copies[arg]);
    copies.push_back(builder.remake(program.nodes()[id], args));
  }
  const std::string text = builder.finish(builder.leaf(Op::kScore), copies[node]).to_string();
  std::string lines;
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = std::min(text.find('\n', start), text.size());
    const std::string_view line = std::string_view(text).substr(start, end - start);
    if (line.starts_with("let ") || line.starts_with("keep ")) lines += concat(lines.empty() ? "" : "\n", line);
    start = end + 1;
  }
  return lines;
}

MaskExplanation explain_mask(const compiler::CompiledProblem& compiled) {
  MaskExplanation mask;
  mask.kind = to_string(compiled.forward.mask.kind);
  if (const auto& band = compiled.forward.mask.band) {
    const bool bottom_right = band->anchor == masks::BandAnchor::kBottomRight;
    mask.band = {band->left, band->right, bottom_right ? "bottom-right" : "top-left"};
  }
  for (const masks::MaskTerm& term : compiled.forward.mask.terms) {
    mask.terms.push_back({to_string(term.kind), text_of(compiled.forward.program, term.node)});
  }
  return mask;
}

BackendExplanation explain_backend(const backend::Backend& backend, const compiler::CompiledProblem& compiled,
                                   const backend::PlanOptions& options) {
  BackendExplanation explanation{backend::support_of(backend, compiled), false, std::nullopt, std::nullopt};
  if (!explanation.support.supported) return explanation;
  explanation.forward_workspace_bytes = backend.plan_forward(compiled, options)->workspace_bytes();
  if (compiled.problem.backward) {
    explanation.backward_workspace_bytes = backend.plan_backward(compiled, options)->workspace_bytes();
  }
  return explanation;
}

std::vector<BackendExplanation> explain_backends(const compiler::CompiledProblem& compiled,
                                                 const CompileOptions& options) {
  if (!options.backend.empty()) backend::find_backend(options.backend);
  std::vector<BackendExplanation> explanations;
  bool chosen = false;
  for (const backend::Backend* backend : backend::backends()) {
    explanations.push_back(explain_backend(*backend, compiled, {options.threads}));
    BackendExplanation& last = explanations.back();
    const bool asked = options.backend.empty() ? backend->memory().kind() == options.memory.value_or(MemoryKind::kHost)
                                               : options.backend == backend->name();
    last.chosen = !chosen && asked && last.support.supported;
    chosen = chosen || last.chosen;
  }
  return explanations;
}

FormCandidateExplanation explain_candidate(const backend::FormCandidate& candidate) {
  FormCandidateExplanation explanation;
  for (const backend::FormCost& cost : candidate.forms) explanation.forms.push_back({cost.form, cost.milliseconds});
  explanation.nodes = candidate.nodes;
  explanation.computed_operands = candidate.computed_operands;
  explanation.chosen = candidate.chosen;
  explanation.asked = candidate.asked;
  explanation.workspace_bytes = candidate.workspace_bytes;
  explanation.refusal = candidate.refusal;
  return explanation;
}

std::vector<FormExplanation> explain_forms(const compiler::CompiledProblem& compiled,
                                           const std::optional<std::string>& device) {
  std::vector<FormExplanation> explanations;
  for (const backend::DirectionForms& forms : backend::form_choices(compiled, device)) {
    FormExplanation explanation;
    explanation.direction = forms.direction == backend::Direction::kForward ? "forward" : "backward";
    explanation.architecture = forms.architecture;
    explanation.verified = forms.verified;
    explanation.seen_on = forms.seen_on;
    explanation.plain_milliseconds = forms.plain_milliseconds;
    explanation.reasons = forms.reasons;
    for (const auto& candidate : forms.candidates) explanation.candidates.push_back(explain_candidate(candidate));
    explanations.push_back(std::move(explanation));
  }
  return explanations;
}

/// Whether the current device's backend has forms to explain.
bool runs_on_device(const std::vector<BackendExplanation>& backends) {
  return std::ranges::any_of(backends, [](const BackendExplanation& backend) {
    return backend.support.memory == MemoryKind::kCuda && backend.support.supported;
  });
}

}  // namespace
}  // namespace explaining

Explanation explain(const AttentionProblem& problem, const ExplainOptions& options) {
  if (options.compile.threads < 0) {
    fail_argument("threads: expected a number of at least 0 (0: one for each core), found ", options.compile.threads);
  }
  Explanation explanation;
  const compiler::CompiledProblem compiled = explaining::compile_with_steps(problem, options, &explanation.steps);
  explanation.problem = problem;
  explanation.mask = explaining::explain_mask(compiled);
  explanation.program = problem.program.to_string();
  explanation.compiled = compiled.forward.program.to_string();
  if (compiled.backward) explanation.derivative = compiled.backward->program.to_string();
  explanation.work = compiler::work_of(compiled);
  explanation.tensors = tensors_of(problem);
  // A device elsewhere comes first: what is asked then must not find this machine's driver missing before.
  const std::optional<std::string>& device = options.device_properties;
  if (device) explanation.forms = explaining::explain_forms(compiled, device);
  explanation.backends = explaining::explain_backends(compiled, options.compile);
  if (!device && explaining::runs_on_device(explanation.backends)) {
    explanation.forms = explaining::explain_forms(compiled, {});
  }
  return explanation;
}

}  // namespace scoremod
