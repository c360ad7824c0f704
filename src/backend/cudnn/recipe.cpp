#include "backend/cudnn/recipe.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "backend/cudnn/execution_plans.hpp"
#include "backend/cudnn/graph/engine.hpp"
#include "backend/cudnn/graph/handle.hpp"
#include "backend/cudnn/graph/library.hpp"
#include "backend/cudnn/graph/plan_key.hpp"
#include "backend/cudnn/graph/refusal.hpp"
#include "backend/cudnn/patterns/attention_time.hpp"
#include "backend/cudnn/patterns/shipped_verdicts.hpp"
#include "backend/cudnn/predicted_workspace.hpp"
#include "backend/cudnn/structural_key.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::cudnn {
namespace {

/// cuDNN's plan as the planner keeps it.
class CudnnArtifact final : public Artifact {
 public:
  explicit CudnnArtifact(std::shared_ptr<const EnginePlan> engine) : engine_(std::move(engine)) {}
  std::vector<std::byte> serialize() const override { return engine_->serialize(); }
  std::size_t workspace_bytes() const override { return engine_->workspace_bytes(); }
  std::string library_engine() const override { return engine_->engine(); }
  std::vector<std::string> next_library_engines() const override { return engine_->next_engines(); }
  const std::shared_ptr<const EnginePlan>& engine() const { return engine_; }

 private:
  std::shared_ptr<const EnginePlan> engine_;
};

std::string describe(const LoweredModifier& modifier) {
  std::string text = concat(modifier.graph.nodes.size(), " modifier nodes");
  const char* separator = ": ";
  for (const std::string& pattern : modifier.patterns) {
    text += separator + pattern;
    separator = ", ";
  }
  return text;
}

std::string describe(const DirectionPlan& plan) {
  std::string text = concat(describe(plan.modifier()), "; workspace ", plan.workspace_bytes(), " bytes");
  if (const std::size_t bytes = plan.computed_bytes(); bytes > 0) {
    text += concat("; ", plan.modifier().computed.size(),
                   " score-free parts are computed beforehand by a kernel of scoremod's, into ", bytes,
                   " bytes of the workspace");
  }
  return text;
}

PlanKey plan_key(const Lowering& lowering, const DeviceTarget& target) {
  PlanKey key;
  key.graph = lowering.graph;
  key.device = target.device;
  key.cudnn_version = library().cudnn_version;
  return key;
}

}  // namespace

BuildResult CudnnRecipe::build(const Target& target) const {
  BuildOutcome built =
      target.present ? build_plan(lowering_.graph, builder_handle()) : build_plan(lowering_.graph, target.device);
  switch (built.status) {
    case BuildStatus::kBuilt: return {std::make_shared<CudnnArtifact>(std::move(built.plan)), ""};
    case BuildStatus::kRefused: return {nullptr, short_refusal(built.text)};
    case BuildStatus::kFailed: fail_environment("cuDNN could not build a plan: ", built.text);
  }
  fail_bug("a build ended in no known way");
}

std::shared_ptr<const Artifact> CudnnRecipe::load(std::span<const std::byte> bytes, const Target&) const {
  return std::make_shared<CudnnArtifact>(load_plan(bytes, builder_handle()));
}

ExecutablePlan CudnnRecipe::plan(std::shared_ptr<const Artifact> artifact, const PlanOptions&) const {
  const auto& engine = dynamic_cast<const CudnnArtifact&>(*artifact).engine();
  auto plan = std::make_shared<const DirectionPlan>(problem_, task_.direction, lowering_.modifier, engine);
  ExecutablePlan executable;
  executable.note = concat(describe(*plan), "; cuDNN's engine ", engine->engine());
  if (task_.direction == Direction::kForward) {
    executable.forward = std::make_shared<CudnnForwardPlan>(std::move(plan));
  } else {
    executable.backward = std::make_shared<CudnnBackwardPlan>(std::move(plan), task_.operand_gradient);
  }
  return executable;
}

Candidate candidate_of(const compiler::CompiledProblem& problem, const PlanTask& task, Lowering lowering,
                       const DeviceTarget& target) {
  const AttentionProblem& p = problem.problem;
  const PatternTable& table = target.patterns(row_class(p));
  Candidate candidate;
  candidate.task = {task.direction, true, {}};
  if (task.operand_gradient) candidate.task.operand_gradients = {*task.operand_gradient};
  const std::string key = canonical_text(structural_key(lowering.modifier, p, task, target));
  const auto* bytes = reinterpret_cast<const std::byte*>(key.data());
  candidate.structural_key = Bytes(bytes, bytes + key.size());
  candidate.known_right = shipped_engine(key);
  candidate.plan_key = canonical_bytes(plan_key(lowering, target));
  candidate.label = plan_label(lowering.graph);
  candidate.predicted =
      attention_time(p, task, lowering.modifier, target.rates, target.architecture == kTimedArchitecture);
  if (lowering.graph.places.any())
    candidate.behind_others = "cuDNN's plans of varlen sequences and page tables were mostly slower on an H200";
  if (task.direction == Direction::kBackward && p.deterministic) {
    candidate.workspace_bytes = predicted_deterministic_workspace(p, target.device.compute_capability);
  }
  for (const std::string& pattern : lowering.modifier.patterns) {
    const double milliseconds = table.milliseconds(pattern, task.direction);
    candidate.parts.push_back({pattern, milliseconds > 0 ? std::optional(milliseconds) : std::nullopt});
  }
  const double plain = table.milliseconds("plain", task.direction);
  if (plain > 0) candidate.base_milliseconds = plain;
  if (!table.verified()) candidate.parts_seen_on = table.seen_on();
  candidate.nodes = lowering.modifier.graph.nodes.size();
  candidate.computed_operands = lowering.modifier.computed.size();
  candidate.notes.push_back(describe(lowering.modifier));
  if (task.operand_gradient) {
    const std::string& name = p.program.operands()[*task.operand_gradient].name;
    candidate.notes.push_back(concat("writes the gradient of '", name, "' too"));
  }
  if (!table.verified()) {
    candidate.notes.push_back(concat("its patterns were verified on ", table.seen_on(), " and not on ",
                                     target.architecture, " with cuDNN ", target.cudnn_version,
                                     ": a trial on the device decides whether it is used"));
  }
  candidate.recipe = std::make_shared<CudnnRecipe>(problem, task, std::move(lowering));
  return candidate;
}

}  // namespace scoremod::backend::cudnn
