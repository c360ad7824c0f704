#include "check/plain_attention.hpp"

#include <cmath>

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
  plain.first.operands.clear();
  plain.first.lengths = {};
  plain.first.sink = Sink::kNone;
  plain.first.dropout = 0;
  plain.first.max_logit = false;
  plain.second.inputs->operands.clear();
  plain.second.call.offsets = {};
  const double unscaled = deviation(plain.first, *plain.second.inputs, {1, {}, nullptr});
  const auto fitting = static_cast<float>(wanted / unscaled);
  if (std::isfinite(fitting)) plain.second.call.scale = fitting;
  return plain;
}

}  // namespace scoremod::checking
