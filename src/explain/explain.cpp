#include "scoremod/explain.hpp"

#include <algorithm>
#include <iterator>
#include <set>
#include <unordered_map>
#include <utility>

#include "backend/backend.hpp"
#include "base/fail.hpp"
#include "compiler/pipeline.hpp"
#include "compiler/work_estimate.hpp"
#include "explain/task_candidates.hpp"
#include "ir/builder.hpp"
#include "masks/tile_mask_analyzer.hpp"
#include "planner/plan_problem.hpp"
#include "problem/tensor_view.hpp"
#include "runtime/known_structures.hpp"
#include "runtime/later_plans.hpp"

namespace scoremod {
namespace explaining {
namespace {

std::vector<CompilerStep> steps_of(const runtime::KnownStructure& known, const ExplainOptions& options) {
  std::vector<CompilerStep> steps;
  steps.reserve(known.steps.size());
  for (const compiler::StepReport& report : known.steps)
    steps.push_back({report.name, report.microseconds, options.step_programs ? report.program : ""});
  return steps;
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

constexpr std::int64_t kMapSide = 32;

char symbol_of(masks::TileMask tile) {
  switch (tile) {
    case masks::TileMask::kEmpty: return '.';
    case masks::TileMask::kFull: return '#';
    case masks::TileMask::kMixed: return '+';
  }
  return '+';
}

/// Tiles are not smaller than needed, so that a short sequence has one for each element.
std::int64_t tile_size(std::int64_t length) { return (length + kMapSide - 1) / kMapSide; }

/// The mask of batch 0 and head 0 in at most kMapSide by kMapSide tiles, as far as the program alone decides it. It has
/// no rows if a program keeps everything.
MaskExplanation::Map mask_map(const compiler::CompiledProblem& compiled) {
  const AttentionProblem& problem = compiled.problem;
  const masks::TileMaskAnalyzer analyzer(compiled.forward.program);
  MaskExplanation::Map map{tile_size(problem.seq_q), tile_size(problem.seq_kv), {}};
  if (analyzer.keeps_all()) return map;
  masks::TileMaskAnalyzer::Scratch scratch = analyzer.make_scratch();
  const masks::OperandRanges unknown;
  for (std::int64_t q = 0; q < problem.seq_q; q += map.tile_q) {
    std::string& row = map.rows.emplace_back();
    for (std::int64_t kv = 0; kv < problem.seq_kv; kv += map.tile_kv) {
      const analysis::IndexBox tile{{{0, 0},
                                     {0, 0},
                                     {q, std::min(q + map.tile_q, problem.seq_q) - 1},
                                     {kv, std::min(kv + map.tile_kv, problem.seq_kv) - 1}}};
      row += symbol_of(analyzer.analyze(tile, unknown, scratch));
    }
  }
  return map;
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
  mask.map = mask_map(compiled);
  return mask;
}

using Elsewhere = std::optional<backend::DeviceProperties>;

/// As a call is planned whose tensors lie in one memory, of those that the caller leaves open.
std::vector<planner::PlannedProblem> plan_in_each_memory(const compiler::CompiledProblem& compiled,
                                                         const CompileOptions& options) {
  std::vector<planner::PlannedProblem> plans;
  const auto plan = [&](planner::Selection selection) {
    plans.push_back(planner::plan_problem(compiled, options, planner::Level::kVerified, std::move(selection)));
  };
  planner::Selection of_call = planner::select(options);
  const bool is_open = options.backend.empty() && !options.memory;
  CompileOptions elsewhere = options;
  elsewhere.memory = of_call.memory == MemoryKind::kHost ? MemoryKind::kCuda : MemoryKind::kHost;
  plan(std::move(of_call));
  if (is_open) plan(planner::select(elsewhere));
  return plans;
}

planner::Selection alone(const backend::Backend& engine) {
  return {{&engine}, engine.memory().kind(), true, "the caller"};
}

bool runs(const std::optional<planner::TaskAnswer>& answer, const backend::Backend& engine) {
  return answer && answer->chosen() != nullptr && answer->chosen()->engine == &engine;
}

/// For a device elsewhere there are no plans that run, only what was built of them.
void add_workspaces(const planner::Prepared& prepared, BackendExplanation& explanation) {
  if (prepared.forward_plan)
    explanation.forward_workspace_bytes = prepared.forward_plan->workspace_bytes();
  else if (prepared.runs_forward())
    explanation.forward_workspace_bytes = prepared.forward.chosen()->workspace_bytes;
  const bool is_whole = prepared.backward && !prepared.fused_backward && !prepared.operand_gradients;
  if (prepared.backward_plan)
    explanation.backward_workspace_bytes = prepared.backward_plan->workspace_bytes();
  else if (is_whole && prepared.runs_backward())
    explanation.backward_workspace_bytes = prepared.backward->chosen()->workspace_bytes;
}

/// One part of a plan for a device elsewhere, for which every candidate was asked: that of a backend and the
/// companions.
planner::PlannedProblem of_one_backend(planner::PlannedProblem planned, const backend::Backend& engine) {
  const auto is_others = [&](const auto& each) { return each.engine != &engine && !each.engine->is_companion(); };
  const auto keep_own = [&](planner::TaskAnswer& answer) {
    std::erase_if(answer.considered, is_others);
    std::erase_if(answer.reasons, is_others);
    const auto is_built = [](const planner::Considered& each) { return each.asked && !each.refusal; };
    const auto first = std::ranges::find_if(answer.considered, is_built);
    if (answer.chosen() == nullptr && first != answer.considered.end()) first->chosen = true;
  };
  keep_own(planned.prepared.forward);
  if (planned.prepared.backward) keep_own(*planned.prepared.backward);
  return planned;
}

/// The answer of one backend, as if there were no other.
planner::PlannedProblem plan_alone(const backend::Backend& engine, const compiler::CompiledProblem& compiled,
                                   const CompileOptions& options, const Elsewhere& elsewhere,
                                   const planner::PlannedProblem& of_call) {
  const auto& selected = of_call.selection.backends;
  const bool is_elsewhere = elsewhere && engine.memory().kind() != MemoryKind::kHost;
  const bool is_selected = std::ranges::find(selected, &engine) != selected.end();
  // Which task makes operand gradients depends on the backend that runs the rest.
  const bool has_same_tasks = !compiled.backward || problem::operands_with_gradient(compiled.problem).empty();
  if (is_elsewhere && is_selected && has_same_tasks) return of_one_backend(of_call, engine);
  // To build for a device elsewhere takes seconds, and a backend that is left out runs nothing there.
  const auto level = is_elsewhere && !is_selected ? planner::Level::kStatic : planner::Level::kVerified;
  return planner::plan_problem_on(elsewhere, compiled, options, level, alone(engine));
}

/// Each backend's own answer, and its place among the others. A plan that was made for a call is used for its backend's
/// answer too.
std::vector<BackendExplanation> explain_backends(const compiler::CompiledProblem& compiled,
                                                 const CompileOptions& options, const Elsewhere& elsewhere,
                                                 const planner::PlannedProblem& of_call) {
  const std::string failure = runtime::later_failure(compiled.problem);
  std::vector<BackendExplanation> explanations;
  for (const backend::Backend* engine : backend::backends()) {
    if (engine->is_companion()) continue;
    const auto planned = plan_alone(*engine, compiled, options, elsewhere, of_call);
    BackendExplanation explanation;
    explanation.support = planner::support_of(planned, *engine, compiled);
    add_workspaces(planned.prepared, explanation);
    explanation.chosen = runs(of_call.prepared.forward, *engine);
    explanation.chosen_backward = runs(of_call.prepared.backward, *engine);
    if (explanation.support.forward_supported) explanation.why_not_chosen = why_not_chosen(of_call, *engine);
    if (explanation.chosen && !failure.empty()) {
      explanation.support.notes.push_back(
          concat("with SCOREMOD_NEW_SIZES=serve: the faster plan, built while calls ran another, failed: ", failure));
    }
    explanations.push_back(std::move(explanation));
  }
  return explanations;
}

/// As a call on a device elsewhere is planned, with every candidate.
planner::PlannedProblem plan_elsewhere(const compiler::CompiledProblem& compiled, const CompileOptions& options,
                                       const Elsewhere& device) {
  CompileOptions for_device = options;
  if (for_device.backend.empty()) for_device.memory = MemoryKind::kCuda;
  auto planned =
      planner::plan_problem_on(device, compiled, for_device, planner::Level::kBuilt, planner::select(for_device), true);
  if (planned.selection.backends.empty()) {
    fail_unsupported("this scoremod was built without a backend that has candidates to explain for a device");
  }
  return planned;
}

}  // namespace
}  // namespace explaining

Explanation explain(const AttentionProblem& problem, const ExplainOptions& options) {
  if (options.compile.threads < 0) {
    fail_argument("threads: expected a number of at least 0 (0: one for each core), found ", options.compile.threads);
  }
  Explanation explanation;
  const auto known = runtime::known_structure(problem, options.compile);
  explanation.steps = explaining::steps_of(*known, options);
  const compiler::CompiledProblem compiled = compiler::at_sizes_of(problem, known->compiled);
  explanation.problem = problem;
  explanation.mask = explaining::explain_mask(compiled);
  explanation.program = problem.program.to_string();
  explanation.compiled = compiled.forward.program.to_string();
  if (compiled.backward) explanation.derivative = compiled.backward->program.to_string();
  explanation.work = compiler::work_of(compiled);
  explanation.tensors = tensors_of(problem);
  explaining::Elsewhere elsewhere;
  if (options.device_properties) elsewhere = backend::DeviceProperties::parse(*options.device_properties);
  std::vector<planner::PlannedProblem> plans;
  if (elsewhere)
    plans.push_back(explaining::plan_elsewhere(compiled, options.compile, elsewhere));
  else
    plans = explaining::plan_in_each_memory(compiled, options.compile);
  for (const planner::PlannedProblem& planned : plans)
    std::ranges::move(explaining::task_candidates(planned, compiled.problem), std::back_inserter(explanation.patterns));
  explanation.decided_by = plans.front().selection.decided_by;
  explanation.backends = explaining::explain_backends(compiled, options.compile, elsewhere, plans.front());
  return explanation;
}

}  // namespace scoremod
