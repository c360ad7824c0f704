#include "backend/cudnn/gradient_ways.hpp"

#include "backend/cudnn/candidates.hpp"
#include "backend/cudnn/device_target.hpp"
#include "backend/cudnn/fused_gradient.hpp"
#include "backend/cudnn/planner.hpp"
#include "backend/cudnn/predicted_workspace.hpp"
#include "base/fail.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::cudnn {
namespace {

std::vector<std::uint32_t> operands_with_gradient(const compiler::CompiledProblem& problem) {
  std::vector<std::uint32_t> operands;
  for (std::uint32_t i = 0; i < problem.program.operands().size(); ++i) {
    if (problem::spec_of(problem.problem, i).has_gradient()) operands.push_back(i);
  }
  return operands;
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
  ways.operands = operands_with_gradient(problem);
  const std::optional<std::uint32_t> operand = fused_gradient_operand(problem);
  if (!operand) return ways;
  const std::string subject = concat("gradient of '", problem.program.operands()[*operand].name, "' ");
  const FormTable& table = current_target().forms(row_class(problem.problem));
  DirectionAnswer answer;
  std::string objection = gradient_objection(table, bias_gradient(problem.problem, *operand));
  if (objection.empty())
    answer = plan_direction(problem, {Direction::kBackward, operand});
  else
    answer.reasons.push_back(std::move(objection));
  if (answer.plan) {
    const std::size_t bytes = answer.plan->workspace_bytes();
    objection = workspace_objection(problem.problem, "backward that writes it", bytes);
    if (objection.empty()) {
      ways.notes.push_back(concat(subject, "by cuDNN beside dq, dk and dv, where no other operand's is asked for: ",
                                  "workspace ", bytes, " bytes"));
      ways.fused = operand;
      ways.plan = std::move(answer.plan);
      return ways;
    }
    answer.reasons.push_back(std::move(objection));
  }
  for (const std::string& reason : answer.reasons) ways.notes.push_back(concat(subject, "not by cuDNN: ", reason));
  return ways;
}

}  // namespace scoremod::backend::cudnn
