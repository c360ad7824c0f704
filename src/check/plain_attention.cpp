#include "check/plain_attention.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "check/score_deviation.hpp"
#include "problem/implied_operands.hpp"

namespace scoremod::checking {
namespace {

double deviation(const AttentionProblem& problem, const ProblemInputs& inputs, const backend::CallParameters& call) {
  std::vector<const void*> operands;
  for (const OwnedOperand& operand : inputs.operands) operands.push_back(operand.bytes.data());
  return score_deviation(problem, {inputs.q.data(), inputs.k.data(), inputs.v.data(), inputs.d_o.data(), operands},
                         call);
}

}  // namespace

std::pair<AttentionProblem, CheckOptions> plain_attention(const AttentionProblem& problem,
                                                          const CheckOptions& options) {
  const float scale = options.call.scale.value_or(problem.effective_scale());
  const double wanted =
      deviation(problem::with_implied_operands(problem), *options.inputs, {scale, options.call.offsets, nullptr});
  std::pair<AttentionProblem, CheckOptions> plain{problem, options};
  plain.first.program = Program();
  // Pages come with the lengths of their keys.
  plain.first.lengths.q = false;
  plain.first.lengths.kv = problem.paged.has_value();
  plain.first.sink = Sink::kNone;
  plain.first.dropout = 0;
  plain.first.max_logit = false;
  plain.first.amax_o = plain.first.amax_gradients = false;
  // Plain attention has only the implied operands, which say where the tensors' rows lie.
  const std::vector<OperandDecl> implied = problem::implied_operands(plain.first);
  const auto is_dropped = [&](const auto& operand) {
    return std::ranges::find(implied, operand.name, &OperandDecl::name) == implied.end();
  };
  std::erase_if(plain.first.operands, is_dropped);
  std::erase_if(plain.second.inputs->operands, is_dropped);
  plain.second.call.offsets = {};
  const double unscaled =
      deviation(problem::with_implied_operands(plain.first), *plain.second.inputs, {1, {}, nullptr});
  const auto fitting = static_cast<float>(wanted / unscaled);
  if (std::isfinite(fitting)) plain.second.call.scale = fitting;
  return plain;
}

}  // namespace scoremod::checking
