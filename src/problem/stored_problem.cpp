#include "problem/stored_problem.hpp"

#include <array>
#include <span>
#include <vector>

#include "base/fail.hpp"
#include "ir/builder.hpp"
#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::problem {
namespace {

NodeId factor_of(const AttentionProblem& problem, ir::Builder& builder, const char* name) {
  const auto operand = operand_number(problem.program, name);
  if (!operand) fail_bug("a problem with FP8 tensors whose program does not declare '", name, "'");
  return builder.operand(*operand);
}

/// The program of the score that the stored numbers have.
Program of_stored_score(const AttentionProblem& problem) {
  const Program& program = problem.program;
  ir::Builder builder;
  for (const OperandDecl& decl : program.operands()) builder.declare(decl);
  const NodeId factor = builder.make(
      Op::kMul, {factor_of(problem, builder, kDescaleOfQueries), factor_of(problem, builder, kDescaleOfKeys)});
  std::vector<NodeId> ids;
  for (const Node& node : program.nodes()) {
    std::array<NodeId, kMaxArgs> args = node.args;
    for (std::size_t i = 0; i < node.arg_count; ++i) args[i] = ids[node.args[i]];
    const NodeId copy = builder.remake(node, std::span(args.data(), node.arg_count));
    ids.push_back(node.op == Op::kScore ? builder.make(Op::kMul, {copy, factor}) : copy);
  }
  const NodeId keep = program.keep();
  return builder.finish(ids[program.value()], keep == kNoNode ? kNoNode : ids[keep]);
}

}  // namespace

AttentionProblem stored_problem(const AttentionProblem& problem, DType dtype_o) {
  if (!is_float8(problem.dtype)) fail_bug("a problem of ", to_string(problem.dtype), " has no FP8 tensors");
  AttentionProblem stored = problem;
  stored.program = of_stored_score(problem);
  stored.dtype = DType::kBF16;
  stored.dtype_o = dtype_o == stored.dtype ? std::nullopt : std::optional(dtype_o);
  stored.dtype_d_o = stored.dtype_gradients = std::nullopt;
  stored.amax_o = false;
  const TensorLayout queries{problem.tokens_q ? Layout::kTHD : Layout::kBSHD, {}};
  const TensorLayout keys{problem.tokens_kv ? Layout::kTHD : Layout::kBSHD, {}};
  stored.q = stored.o = queries;
  stored.k = stored.v = keys;
  stored.d_o = stored.dq = stored.dk = stored.dv = std::nullopt;
  // The mask has them already, but a problem with pages must have them.
  stored.lengths.kv = stored.lengths.kv || stored.paged.has_value();
  return stored;
}

}  // namespace scoremod::problem
