#include "backend/cudnn/verification.hpp"

#include <set>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "backend/cuda/cuda_memory.hpp"
#include "backend/cudnn/execution_plans.hpp"
#include "backend/cudnn/structural_key.hpp"
#include "base/fail.hpp"
#include "verification/trial_problem.hpp"
#include "verification/verify_plan.hpp"

namespace scoremod::embedded {
// The verdicts of admitted/, made a constant of the library by CMake.
extern const std::string_view kCudnnAdmittedSm90;
}  // namespace scoremod::embedded

namespace scoremod::backend::cudnn {
namespace {

/// The verdicts that ship with the library: keys that were seen to be right.
const std::set<std::string, std::less<>>& shipped_keys() {
  static const std::set<std::string, std::less<>> keys = [] {
    std::set<std::string, std::less<>> right;
    const auto json = nlohmann::json::parse(embedded::kCudnnAdmittedSm90);
    for (const auto& result : json.at("results")) {
      if (result.at("verdict") == verification::kRightVerdict) right.insert(result.at("key").get<std::string>());
    }
    return right;
  }();
  return keys;
}

std::vector<verification::OutputError> run(const compiler::CompiledProblem& trial, const PlanTask& task,
                                           std::unique_ptr<const DirectionPlan> made) {
  const MemorySpace& memory = cuda::cuda_memory();
  const std::shared_ptr<const DirectionPlan> plan = std::move(made);
  if (task.direction == Direction::kForward) {
    return verification::verify_forward(trial, CudnnForwardPlan(plan), memory);
  }
  GradientWays ways;
  std::vector<std::uint32_t> gradients;
  if (task.operand_gradient) {
    gradients = ways.operands = {*task.operand_gradient};
    ways.fused = task.operand_gradient;
    ways.plan = plan;
  }
  return verification::verify_backward(trial, CudnnBackwardPlan(plan, std::move(ways), nullptr), memory, gradients);
}

}  // namespace

verification::Verdict verify_lowering(const compiler::CompiledProblem& problem, const PlanTask& task,
                                      const LoweredModifier& modifier, const DeviceTarget& target,
                                      const MakeTrialPlan& make_plan) {
  const std::string key = structural_key(modifier, problem.problem, task, target);
  const auto* bytes = reinterpret_cast<const std::byte*>(key.data());
  verification::Subject subject;
  subject.key = Bytes(bytes, bytes + key.size());
  subject.engine = "cudnn " + target.cudnn_version;
  subject.architecture = architecture_text(target.device);
  subject.label = concat("trial of a ", modifier.graph.nodes.size(), "-node modifier");
  subject.shipped_right = [&key] { return shipped_keys().contains(key); };
  return verification::verify(subject, [&] {
    const compiler::CompiledProblem trial = verification::trial_problem(problem);
    verification::Verdict verdict = verification::verdict_of(run(trial, task, make_plan(trial)), task.direction);
    if (!verdict.right) verdict.reason += "; cuDNN accepted the graph and computed something else";
    return verdict;
  });
}

}  // namespace scoremod::backend::cudnn
