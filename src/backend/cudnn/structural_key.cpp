#include "backend/cudnn/structural_key.hpp"

#include <string_view>

#include "backend/cudnn/lowering/fused_gradient.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::cudnn {
namespace {

/// To be raised when what a trial runs or what structural_key() says changes so that older verdicts say too little.
constexpr int kVerificationRevision = 1;

const char* sign_of(double value) {
  if (value == 0) return "0";
  if (value == 1) return "1";
  return value > 0 ? "+" : value < 0 ? "-" : "nan";
}

/// A copy in which only the structure of tensors and constants is left.
ModifierGraph structure_of(ModifierGraph graph) {
  for (ModifierTensor& tensor : graph.tensors) {
    for (std::size_t i = 0; i < tensor.dims.size(); ++i) {
      tensor.dims[i] = tensor.dims[i] == 1 ? 1 : 2;
      tensor.strides[i] = tensor.dims[i] == 1 ? 1 : tensor.strides[i] == 0 ? 0 : tensor.strides[i] == 1 ? 1 : 2;
    }
  }
  for (ModifierNode& node : graph.nodes) {
    for (Ref& input : node.inputs) {
      if (input.kind == Ref::Kind::kFloat && std::string_view(sign_of(input.float_value)).find_first_of("+-") == 0) {
        input.float_value = input.float_value > 0 ? 2.0f : -2.0f;
      }
      if (input.kind == Ref::Kind::kInt32 && input.int_value != 0 && input.int_value != 1) {
        input.int_value = input.int_value > 0 ? 2 : -2;
      }
    }
    if (node.band) node.band->bound = node.band->bound > 0 ? 1 : node.band->bound < 0 ? -1 : 0;
  }
  return graph;
}

const char* relation(std::int64_t x, std::int64_t y) { return x == y ? "=" : x < y ? "<" : ">"; }
/// Of a bias's gradient: its dtype, and for each dimension whether it is summed over and is the densest.
std::string gradient_text(const BiasGradient& gradient) {
  std::string text = concat(" with the gradient of a ", to_string(gradient.dtype), " bias ");
  for (std::size_t i = 0; i < gradient.tensor.dims.size(); ++i) {
    text += gradient.tensor.dims[i] == 1 ? "1" : gradient.tensor.strides[i] == 1 ? "d" : "n";
  }
  return text;
}

const char* count(std::int64_t n) { return n == 1 ? "1" : "n"; }

}  // namespace

std::string structural_key(const LoweredModifier& modifier, const AttentionProblem& problem, const PlanTask& task,
                           const DeviceTarget& target) {
  const Direction direction = task.direction;
  std::string computed;
  for (const ComputedOperand& operand : modifier.computed) {
    computed += concat(" ", to_string(operand.type), "[");
    for (const bool axis : operand.axes) computed += axis ? 'n' : '1';
    computed += ']';
  }
  return concat("revision ", kVerificationRevision, ", ", kPlanRevision, "; ", target.architecture, "; cudnn ",
                target.cudnn_version, "; ", direction == Direction::kForward ? "forward" : "backward", " ",
                to_string(problem.dtype),
                direction == Direction::kBackward && problem.deterministic ? " deterministic" : "",
                task.operand_gradient ? gradient_text(bias_gradient(problem, *task.operand_gradient)) : "", "; dims ",
                problem.dim_qk, " ", problem.dim_v, "; batch ", count(problem.batch), " heads ",
                count(problem.heads_kv), " group ", count(problem.heads_q / problem.heads_kv), "; rows ",
                count(problem.seq_q), " ", relation(problem.seq_q, problem.seq_kv), " keys; computed", computed, "\n",
                to_string(structure_of(modifier.graph)));
}

}  // namespace scoremod::backend::cudnn
