#include "backend/cudnn/structural_key.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "backend/cudnn/lowering/fused_gradient.hpp"
#include "base/fail.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::cudnn {
namespace {

using problem::TensorRole;

/// 0, 1, and one number each for all others of a sign; NaN stays.
template <class Number>
Number structure_of(Number value) {
  if (value == 0 || value == 1 || std::isnan(static_cast<double>(value))) return value;
  return static_cast<Number>(value > 0 ? 2 : -2);
}

void reduce(std::array<std::int64_t, 4>& dims, std::array<std::int64_t, 4>& strides) {
  for (std::size_t i = 0; i < dims.size(); ++i) {
    dims[i] = dims[i] == 1 ? 1 : 2;
    strides[i] = dims[i] == 1 ? 1 : structure_of(strides[i]);
  }
}

/// A copy in which only the structure of tensors and constants is left.
ModifierGraph structure_of(ModifierGraph graph) {
  for (ModifierTensor& tensor : graph.tensors) reduce(tensor.dims, tensor.strides);
  for (ModifierNode& node : graph.nodes) {
    for (Ref& input : node.inputs) {
      if (input.kind == Ref::Kind::kFloat) input.float_value = structure_of(input.float_value);
      if (input.kind == Ref::Kind::kInt32) input.int_value = structure_of(input.int_value);
    }
    if (node.band) node.band->bound = node.band->bound > 0 ? 1 : node.band->bound < 0 ? -1 : 0;
  }
  return graph;
}

std::string text_of(const BiasGradient& gradient) {
  const auto& [tensor, dtype] = gradient;
  const auto& [dims, strides] = tensor;
  std::string text = concat(" with the gradient of a ", to_string(dtype), " bias ");
  for (std::size_t i = 0; i < dims.size(); ++i) text += dims[i] == 1 ? '1' : strides[i] == 1 ? 'd' : 'n';
  return text;
}

std::string text_of(const StructuralKey::Computed& operand) {
  const auto& [type, axes] = operand;
  std::string text = concat(" ", to_string(type), "[");
  for (const bool axis : axes) text += axis ? 'n' : '1';
  return text + "]";
}

/// Whether d_o, dq, dk or dv lies otherwise than o, q, k or v.
bool lays_out_gradients(const AttentionProblem& problem) {
  return std::ranges::any_of(
      std::array{TensorRole::kDO, TensorRole::kDQ, TensorRole::kDK, TensorRole::kDV}, [&](TensorRole role) {
        return problem::strides_of(problem, role) != problem::strides_of(problem, problem::primal_of(role));
      });
}

char count(bool is_one) { return is_one ? '1' : 'n'; }

}  // namespace

StructuralKey structural_key(const LoweredModifier& modifier, const AttentionProblem& problem, const PlanTask& task,
                             const DeviceTarget& target) {
  StructuralKey key;
  key.architecture = target.architecture;
  key.cudnn_version = target.cudnn_version;
  key.direction = task.direction;
  key.dtype = problem.dtype;
  key.sink = task.direction == Direction::kForward && problem.sink != Sink::kNone;
  key.ragged_q = problem.tokens_q.has_value();
  key.ragged_kv = problem.tokens_kv.has_value();
  if (problem.paged) {
    const Strides strides = problem::strides_of(problem, TensorRole::kK);
    key.page_rows = problem.paged->block_size;
    key.pages_by_heads = problem.heads_kv > 1 && strides.head > strides.sequence;
  }
  key.lays_out_gradients = task.direction == Direction::kBackward && lays_out_gradients(problem);
  key.deterministic = task.direction == Direction::kBackward && problem.deterministic;
  if (task.operand_gradient) {
    key.bias_gradient = bias_gradient(problem, *task.operand_gradient);
    reduce(key.bias_gradient->tensor.dims, key.bias_gradient->tensor.strides);
  }
  key.dim_qk = problem.dim_qk;
  key.dim_v = problem.dim_v;
  key.one_batch = problem.batch == 1;
  key.one_kv_head = problem.heads_kv == 1;
  key.one_query_head = problem.heads_q == problem.heads_kv;
  key.one_row = problem.seq_q == 1;
  key.rows_to_keys = problem.seq_q <=> problem.seq_kv;
  for (const ComputedOperand& operand : modifier.computed) key.computed.push_back({operand.type, operand.axes});
  key.modifier = structure_of(modifier.graph);
  return key;
}

std::string canonical_text(const StructuralKey& key) {
  // Names every member: one that is added does not compile until it is written too.
  const auto& [architecture, cudnn_version, direction, dtype, sink, ragged_q, ragged_kv, page_rows, pages_by_heads,
               lays_out_gradients, deterministic, bias_gradient, dim_qk, dim_v, one_batch, one_kv_head, one_query_head,
               one_row, rows_to_keys, computed, modifier, revision, plan_revision] = key;
  std::string computed_text;
  for (const StructuralKey::Computed& operand : computed) computed_text += text_of(operand);
  return concat(
      "revision ", revision, ", ", plan_revision, "; ", architecture, "; cudnn ", cudnn_version, "; ",
      direction == Direction::kForward ? "forward" : "backward", " ", to_string(dtype), sink ? " with a sink" : "",
      ragged_q ? " varlen queries" : "", ragged_kv ? " varlen keys" : "",
      page_rows > 0 ? concat(" pages of ", page_rows, pages_by_heads ? " by heads" : "") : "",
      lays_out_gradients ? " with gradients' layouts" : "", deterministic ? " deterministic" : "",
      bias_gradient ? text_of(*bias_gradient) : "", "; dims ", dim_qk, " ", dim_v, "; batch ", count(one_batch),
      " heads ", count(one_kv_head), " group ", count(one_query_head), "; rows ", count(one_row), " ",
      rows_to_keys == 0  ? "="
      : rows_to_keys < 0 ? "<"
                         : ">",
      " keys; computed", computed_text, "; forward nodes ", modifier.forward_count, "\n", to_string(modifier));
}

}  // namespace scoremod::backend::cudnn
