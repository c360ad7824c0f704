#include "backend/cudnn/cudnn_backend.hpp"

#include <algorithm>

#include "scoremod/error.hpp"

#include "backend/cuda/cuda_memory.hpp"
#include "backend/cuda/operand_gradients.hpp"
#include "backend/cudnn/execution_plans.hpp"
#include "backend/cudnn/graph/device_target.hpp"
#include "backend/cudnn/planner.hpp"
#include "backend/cudnn/predicted_workspace.hpp"
#include "backend/cudnn/problem_rules.hpp"
#include "base/fail.hpp"

namespace scoremod::backend {
namespace {

using compiler::CompiledProblem;

/// What the plans themselves say is held to the limit too: a prediction may be off, and says nothing of what scoremod
/// adds. Nothing has been allocated yet.
void object_to_workspace(const CompiledProblem& problem, const char* direction, std::size_t bytes, Verdict& verdict) {
  std::string reason = cudnn::workspace_objection(problem.problem, direction, bytes);
  if (!reason.empty()) verdict.reasons.push_back(std::move(reason));
}

void add(std::vector<std::string>& to, const char* direction, const std::vector<std::string>& from) {
  for (const std::string& text : from) to.push_back(concat(direction, ": ", text));
}

class CudnnBackend final : public Backend {
 public:
  const char* name() const override { return "cudnn"; }
  const MemorySpace& memory() const override { return cuda::cuda_memory(); }
  /// cuDNN computes functions by the GPU's approximations. The largest error seen on an H200 with 9.19 was 2^-17.4 (a
  /// tanh, by the LSE of rows with two keys).
  double function_error() const override { return 0x1p-17; }

  Verdict support(const CompiledProblem& problem) const override {
    Verdict verdict;
    try {
      judge(problem, verdict);
    } catch (const Error& error) {
      // No driver, no device, no cuDNN, or a build that failed for a reason of the machine's.
      if (error.code() != ErrorCode::kEnvironment) throw;
      verdict.reasons.push_back(error.what());
    }
    verdict.supported = verdict.reasons.empty();
    return verdict;
  }

  std::unique_ptr<ForwardPlan> plan_forward(const CompiledProblem& problem, const PlanOptions&) const override {
    return std::make_unique<cudnn::CudnnForwardPlan>(plan(problem, Direction::kForward));
  }

  std::unique_ptr<BackwardPlan> plan_backward(const CompiledProblem& problem, const PlanOptions&) const override {
    auto backward = plan(problem, Direction::kBackward);
    cudnn::GradientWays ways = cudnn::gradient_ways(problem);
    std::unique_ptr<const cuda::OperandGradients> pass;
    if (ways.needs_pass()) pass = cuda::OperandGradients::build(problem, ways.operands);
    return std::make_unique<cudnn::CudnnBackwardPlan>(std::move(backward), std::move(ways), std::move(pass));
  }

 private:
  static void judge(const CompiledProblem& problem, Verdict& verdict) {
    verdict.reasons = cudnn::problem_objections(problem.problem, cudnn::current_target().device.compute_capability);
    if (!verdict.reasons.empty()) return;
    const cudnn::DirectionAnswer forward = cudnn::plan_direction(problem, Direction::kForward);
    add(verdict.reasons, "forward", forward.reasons);
    add(verdict.notes, "forward", forward.notes);
    if (forward.plan) object_to_workspace(problem, "forward", forward.plan->workspace_bytes(), verdict);
    if (!problem.backward) return;
    const cudnn::DirectionAnswer backward = cudnn::plan_direction(problem, Direction::kBackward);
    add(verdict.reasons, "backward", backward.reasons);
    add(verdict.notes, "backward", backward.notes);
    if (backward.plan) object_to_workspace(problem, "backward", backward.plan->workspace_bytes(), verdict);
    if (verdict.reasons.empty()) judge_operand_gradients(problem, verdict);
  }

  static void judge_operand_gradients(const CompiledProblem& problem, Verdict& verdict) {
    const cudnn::GradientWays ways = cudnn::gradient_ways(problem);
    verdict.notes.insert(verdict.notes.end(), ways.notes.begin(), ways.notes.end());
    if (!ways.needs_pass()) return;
    add(verdict.reasons, "operand gradients", cuda::OperandGradients::unsupported_reasons(problem));
    if (!verdict.reasons.empty()) return;
    const std::size_t bytes = cuda::OperandGradients::cost(problem, ways.operands).workspace_bytes;
    object_to_workspace(problem, "pass for the gradients of operands", bytes, verdict);
    verdict.notes.push_back(cuda::describe(problem, ways.operands));
  }

  static std::shared_ptr<const cudnn::DirectionPlan> plan(const CompiledProblem& problem, Direction direction) {
    const cudnn::DirectionAnswer answer = cudnn::plan_direction(problem, direction);
    if (answer.plan) return answer.plan;
    std::string text = "cudnn does not run this problem";
    for (const std::string& reason : answer.reasons) text += concat("; ", reason);
    fail_unsupported(text);
  }
};

}  // namespace

const Backend& cudnn_backend() {
  static const CudnnBackend backend;
  return backend;
}

}  // namespace scoremod::backend
