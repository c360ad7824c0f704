#include "backend/cudnn/graph/attention_graph.hpp"

#include <algorithm>
#include <utility>

#include "backend/cudnn/lowering/fused_gradient.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::cudnn {
namespace {

using problem::TensorRole;

/// The stride of a dimension of size 1 has no meaning. It becomes that of a dense BSHD tensor, the span of its inner
/// dimensions, so that one plan serves every equivalent layout. So does the batch stride of a varlen tensor, which has
/// the longest sequence for each batch: one plan serves any number of tokens.
AttentionTensor tensor_of(const AttentionProblem& problem, TensorRole role) {
  const bool of_keys = !problem::is_query_like(role);
  const bool ragged = (of_keys ? problem.tokens_kv : problem.tokens_q).has_value();
  const problem::TensorShape shape =
      of_keys && problem.paged ? problem::memory_shape_of(problem, role) : problem::shape_of(problem, role);
  const Strides strides = problem::strides_of(problem, role);
  AttentionTensor tensor{{shape.batch, shape.heads, shape.sequence, shape.dim},
                         {strides.batch, strides.head, strides.sequence, strides.dim}};
  constexpr std::array<std::size_t, 4> kInnermostFirst{3, 1, 2, 0};  // dim, heads, sequence, batch
  std::int64_t span = 1;
  for (const std::size_t i : kInnermostFirst) {
    if (tensor.dims[i] == 1 || (ragged && i == 0)) tensor.strides[i] = span;
    span = std::max(span, tensor.strides[i] * tensor.dims[i]);
  }
  return tensor;
}

}  // namespace

AttentionGraph attention_graph(const AttentionProblem& problem, const PlanTask& task, ModifierGraph modifier) {
  AttentionGraph graph;
  graph.direction = task.direction;
  graph.dtype = problem.dtype;
  graph.q = tensor_of(problem, TensorRole::kQ);
  graph.k = tensor_of(problem, TensorRole::kK);
  graph.v = tensor_of(problem, TensorRole::kV);
  graph.o = tensor_of(problem, TensorRole::kO);
  graph.places = {problem.tokens_q.has_value(), problem.tokens_kv.has_value()};
  if (problem.paged) {
    // cuDNN takes no longer page table; place_sequences copies so much of each.
    graph.places.pages = (problem.seq_kv + problem.paged->block_size - 1) / problem.paged->block_size;
    graph.places.seq_kv = problem.seq_kv;
  }
  if (task.direction == Direction::kBackward) {
    graph.gradients = {tensor_of(problem, TensorRole::kDO), tensor_of(problem, TensorRole::kDQ),
                       tensor_of(problem, TensorRole::kDK), tensor_of(problem, TensorRole::kDV)};
  } else {
    // The backward makes the weights of the LSE, which has the sink in it.
    graph.sink = problem.sink != Sink::kNone;
  }
  // Always, so that one plan serves inference and training: the LSE is a few bytes for each row.
  graph.stats = true;
  graph.deterministic = task.direction == Direction::kBackward && problem.deterministic;
  if (task.operand_gradient) graph.bias_gradient = bias_gradient(problem, *task.operand_gradient);
  graph.modifier = std::move(modifier);
  graph.engine = task.engine;
  return graph;
}

}  // namespace scoremod::backend::cudnn
