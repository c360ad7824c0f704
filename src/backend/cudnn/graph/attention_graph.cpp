#include "backend/cudnn/graph/attention_graph.hpp"

#include <utility>

#include "backend/cudnn/lowering/fused_gradient.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::cudnn {
namespace {

AttentionTensor tensor_of(const AttentionProblem& problem, problem::TensorRole role) {
  const problem::TensorShape shape = problem::shape_of(problem, role);
  const Strides strides = problem::strides_of(problem, role);
  return {{shape.batch, shape.heads, shape.sequence, shape.dim},
          {strides.batch, strides.head, strides.sequence, strides.dim}};
}

}  // namespace

AttentionGraph attention_graph(const AttentionProblem& problem, const PlanTask& task, ModifierGraph modifier) {
  AttentionGraph graph;
  graph.direction = task.direction;
  graph.dtype = problem.dtype;
  graph.q = tensor_of(problem, problem::TensorRole::kQ);
  graph.k = tensor_of(problem, problem::TensorRole::kK);
  graph.v = tensor_of(problem, problem::TensorRole::kV);
  graph.o = tensor_of(problem, problem::TensorRole::kO);
  // Always, so that one plan serves inference and training: the LSE is a few bytes for each row.
  graph.stats = true;
  graph.deterministic = task.direction == Direction::kBackward && problem.deterministic;
  if (task.operand_gradient) graph.bias_gradient = bias_gradient(problem, *task.operand_gradient);
  graph.modifier = std::move(modifier);
  return graph;
}

}  // namespace scoremod::backend::cudnn
