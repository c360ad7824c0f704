#include "compiler/operand_reduction.hpp"

#include <algorithm>

#include "base/fail.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::compiler {
namespace {

std::array<std::int64_t, kAxisCount> extents_of(const OperandDecl& decl, const std::vector<std::int64_t>& shape) {
  std::array<std::int64_t, kAxisCount> extents{1, 1, 1, 1};
  std::size_t dimension = 0;
  for (std::size_t i = 0; i < kAxisCount; ++i) {
    if ((decl.is_table() || decl.axes[i]) && dimension < shape.size()) extents[i] = shape[dimension++];
  }
  return extents;
}

OperandReduction reduction_for(const AttentionProblem& problem, std::uint32_t operand, const Program& derivative) {
  const OperandDecl& decl = problem.program.operands()[operand];
  OperandReduction reduction;
  reduction.operand = operand;
  reduction.scattered = decl.is_table();
  reduction.axes = decl.axes;
  reduction.extents = extents_of(decl, problem::spec_of(problem, operand).shape);
  for (std::size_t i = 0; i < derivative.roots().size(); ++i) {
    const Root& root = derivative.roots()[i];
    if (root.kind == RootKind::kOperandAdjoint && root.operand == operand) reduction.roots.push_back(i);
  }
  if (reduction.roots.size() == 1) {
    const NodeId contribution = derivative.roots()[reduction.roots.front()].node;
    reduction.is_upstream = derivative.nodes()[contribution].op == Op::kUpstream;
  }
  return reduction;
}

}  // namespace

std::vector<OperandReduction> operand_reductions(const AttentionProblem& problem, const Program& derivative) {
  std::vector<OperandReduction> reductions;
  for (const std::uint32_t operand : problem::operands_with_gradient(problem)) {
    reductions.push_back(reduction_for(problem, operand, derivative));
  }
  return reductions;
}

const OperandReduction& reduction_of(std::span<const OperandReduction> reductions, std::uint32_t operand) {
  const auto found = std::ranges::find(reductions, operand, &OperandReduction::operand);
  if (found == reductions.end()) fail_bug("operand ", operand, " has no gradient, or the problem no backward");
  return *found;
}

}  // namespace scoremod::compiler
