#include "backend/cudnn/gradient_ways.hpp"

#include "backend/cudnn/candidates.hpp"
#include "backend/cudnn/graph/device_target.hpp"
#include "backend/cudnn/lowering/fused_gradient.hpp"
#include "backend/cudnn/planner.hpp"
#include "backend/cudnn/predicted_workspace.hpp"
#include "base/fail.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::cudnn {
namespace {

/// The backward that writes the operand's gradient; null where there is none, and then why.
std::shared_ptr<const DirectionPlan> fused_plan(const compiler::CompiledProblem& problem, std::uint32_t operand,
                                                std::vector<std::string>& reasons) {
  const FormTable& table = current_target().forms(row_class(problem.problem));
  std::string objection = gradient_objection(table, bias_gradient(problem.problem, operand));
  if (objection.empty()) {
    DirectionAnswer answer = plan_direction(problem, {Direction::kBackward, operand});
    reasons = std::move(answer.reasons);
    if (!answer.plan) return nullptr;
    objection = workspace_objection(problem.problem, "backward that writes it", answer.plan->workspace_bytes());
    if (objection.empty()) return std::move(answer.plan);
  }
  reasons.push_back(std::move(objection));
  return nullptr;
}

}  // namespace

bool GradientWays::is_fused(std::span<void* const> d_operands) const {
  if (!fused || d_operands[*fused] == nullptr) return false;
  for (std::uint32_t i = 0; i < d_operands.size(); ++i) {
    if (i != *fused && d_operands[i] != nullptr) return false;
  }
  return true;
}

GradientWays gradient_ways(const compiler::CompiledProblem& problem) {
  GradientWays ways;
  ways.operands = problem::operands_with_gradient(problem.problem);
  const std::optional<std::uint32_t> operand = fused_gradient_operand(problem);
  if (!operand) return ways;
  const std::string subject = concat("gradient of '", problem.problem.program.operands()[*operand].name, "' ");
  std::vector<std::string> reasons;
  ways.plan = fused_plan(problem, *operand, reasons);
  if (ways.plan) {
    ways.fused = operand;
    ways.notes.push_back(concat(subject, "by cuDNN beside dq, dk and dv, where no other operand's is asked for: ",
                                "workspace ", ways.plan->workspace_bytes(), " bytes"));
  }
  for (const std::string& reason : reasons) ways.notes.push_back(concat(subject, "not by cuDNN: ", reason));
  return ways;
}

}  // namespace scoremod::backend::cudnn
