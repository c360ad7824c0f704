#include "scoremod/explain.hpp"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <utility>

#include "backend/backend.hpp"
#include "base/fail.hpp"
#include "compiler/pipeline.hpp"
#include "compiler/work_estimate.hpp"
#include "explain/mask_map.hpp"
#include "ir/builder.hpp"
#include "planner/plan_problem.hpp"
#include "runtime/later_plans.hpp"

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

/// A node and all that it is computed from, arguments first.
std::set<NodeId> nodes_of(const Program& program, NodeId node) {
  std::set<NodeId> nodes;
  std::vector<NodeId> pending{node};
  while (!pending.empty()) {
    const NodeId id = pending.back();
    pending.pop_back();
    if (!nodes.insert(id).second) continue;
    for (const NodeId arg : ir::args_of(program.nodes()[id])) pending.push_back(arg);
  }
  return nodes;
}

/// The lines of a program that compute one bool node. Copies no more than these: a mask may have thousands of terms.
std::string text_of(const Program& program, NodeId node) {
  ir::Builder builder;
  for (const OperandDecl& decl : program.operands()) builder.declare(decl);
  std::unordered_map<NodeId, NodeId> copies;
  for (const NodeId id : nodes_of(program, node)) {
    std::vector<NodeId> args;
    for (const NodeId arg : ir::args_of(program.nodes()[id])) args.push_back(copies.at(arg));
    copies[id] = builder.remake(program.nodes()[id], args);
  }
  const std::string text = builder.finish(builder.leaf(Op::kScore), copies.at(node)).to_string();
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
  mask.map = explaining::mask_map(compiled);
  return mask;
}

PatternCandidateExplanation explain_candidate(const planner::Considered& considered) {
  PatternCandidateExplanation explanation;
  const backend::Candidate& candidate = considered.candidate;
  explanation.backend = considered.engine->name();
  for (const backend::CandidatePart& part : candidate.parts)
    explanation.patterns.push_back({part.name, part.milliseconds});
  explanation.nodes = candidate.nodes;
  explanation.computed_operands = candidate.computed_operands;
  explanation.predicted_milliseconds = candidate.predicted.milliseconds;
  explanation.prediction_source = candidate.predicted.source;
  explanation.measured_milliseconds = considered.measured_milliseconds;
  explanation.chosen = considered.chosen;
  explanation.asked = considered.asked;
  explanation.workspace_bytes = considered.workspace_bytes;
  if (considered.refusal) explanation.refusal = to_string(*considered.refusal);
  return explanation;
}

void add_patterns(const planner::PlannedProblem& planned, std::vector<PatternExplanation>& patterns) {
  const auto add = [&](const planner::TaskAnswer& answer) {
    PatternExplanation explanation;
    explanation.direction = answer.task.direction == backend::Direction::kForward ? "forward" : "backward";
    explanation.architecture = planned.target->device.architecture();
    explanation.verified = true;
    for (const planner::Considered& considered : answer.considered) {
      if (!considered.candidate.parts_seen_on.empty()) {
        explanation.verified = false;
        explanation.seen_on = considered.candidate.parts_seen_on;
      }
      if (considered.candidate.base_milliseconds) {
        explanation.plain_milliseconds = considered.candidate.base_milliseconds;
      }
      explanation.candidates.push_back(explain_candidate(considered));
    }
    for (const planner::EngineReasons& engine : answer.reasons) {
      for (const UnsupportedReason& reason : engine.reasons) explanation.reasons.push_back(to_string(reason));
    }
    patterns.push_back(std::move(explanation));
  };
  add(planned.prepared.forward);
  if (planned.prepared.backward) add(*planned.prepared.backward);
}

/// Whether an engine had a choice, or something to verify.
bool has_candidates_to_explain(const planner::Prepared& prepared) {
  return std::ranges::any_of(prepared.forward.considered, [](const planner::Considered& considered) {
    return !considered.candidate.structural_key.empty();
  });
}

planner::Selection alone(const backend::Backend& engine) {
  return {{&engine}, engine.memory().kind(), true, "the caller"};
}

/// Each backend by itself; what a device's backend has planned then serves the explanation of its candidates.
std::vector<BackendExplanation> explain_backends(const compiler::CompiledProblem& compiled,
                                                 const CompileOptions& options,
                                                 std::vector<PatternExplanation>* patterns) {
  std::vector<BackendExplanation> explanations;
  for (const backend::Backend* engine : backend::backends()) {
    if (engine->is_companion()) continue;
    const auto planned = planner::plan_problem(compiled, options, planner::Level::kVerified, alone(*engine));
    BackendExplanation explanation{planner::support_of(planned, *engine, compiled), false, {}, {}};
    const planner::Prepared& prepared = planned.prepared;
    if (prepared.forward_plan) explanation.forward_workspace_bytes = prepared.forward_plan->workspace_bytes();
    if (prepared.backward_plan) explanation.backward_workspace_bytes = prepared.backward_plan->workspace_bytes();
    if (patterns != nullptr && planned.target && has_candidates_to_explain(prepared)) add_patterns(planned, *patterns);
    explanations.push_back(std::move(explanation));
  }
  return explanations;
}

/// Marks what compile() would take, and says who decided.
void mark_chosen(const compiler::CompiledProblem& compiled, const CompileOptions& options, Explanation& explanation) {
  const std::string failure = runtime::later_failure(compiled.problem);
  planner::Selection selection = planner::select(options);
  explanation.decided_by = selection.decided_by;
  const auto planned = planner::plan_problem(compiled, options, planner::Level::kVerified, std::move(selection));
  const planner::Considered* chosen = planned.prepared.forward.chosen();
  if (chosen == nullptr) return;
  for (BackendExplanation& backend : explanation.backends) {
    backend.chosen = backend.support.backend == chosen->engine->name();
    if (!backend.chosen || failure.empty()) continue;
    backend.support.notes.push_back(
        concat("with SCOREMOD_NEW_SIZES=serve: the plans that were to be built beside failed: ", failure));
  }
}

std::vector<PatternExplanation> explain_patterns_elsewhere(const compiler::CompiledProblem& compiled,
                                                           const CompileOptions& options, const std::string& device) {
  CompileOptions for_device = options;
  if (for_device.backend.empty()) for_device.memory = MemoryKind::kCuda;
  std::vector<PatternExplanation> patterns;
  const auto planned =
      planner::plan_problem_elsewhere(compiled, for_device, planner::Level::kBuilt, planner::select(for_device),
                                      backend::DeviceProperties::parse(device), true);
  if (planned.selection.backends.empty()) {
    fail_unsupported("this scoremod was built without a backend that has candidates to explain for a device");
  }
  add_patterns(planned, patterns);
  return patterns;
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
  const std::optional<std::string>& device = options.device_properties;
  if (device) explanation.patterns = explaining::explain_patterns_elsewhere(compiled, options.compile, *device);
  explanation.backends =
      explaining::explain_backends(compiled, options.compile, device ? nullptr : &explanation.patterns);
  explaining::mark_chosen(compiled, options.compile, explanation);
  return explanation;
}

}  // namespace scoremod
