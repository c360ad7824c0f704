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

/// The factor of the score that the stored numbers have; kNoNode where they have none.
NodeId score_factor(const AttentionProblem& problem, ir::Builder& builder) {
  NodeId factor = kNoNode;
  for (const char* name : {kDescaleOfQueries, kDescaleOfKeys}) {
    if (!is_tensor_scale(problem, name) || has_block_scales(problem, name)) continue;
    const NodeId own = factor_of(problem, builder, name);
    factor = factor == kNoNode ? own : builder.make(Op::kMul, {factor, own});
  }
  return factor;
}

/// The program of that score.
Program of_stored_score(const AttentionProblem& problem) {
  const Program& program = problem.program;
  ir::Builder builder;
  for (OperandDecl decl : program.operands()) {
    if (has_head_scales(problem, decl.name) && decl.name == kDescaleOfKeys)
      decl = {decl.name, decl.type, {false, true, false, false}, 0};
    builder.declare(decl);
  }
  const NodeId factor = score_factor(problem, builder);
  std::vector<NodeId> ids;
  for (const Node& node : program.nodes()) {
    std::array<NodeId, kMaxArgs> args = node.args;
    for (std::size_t i = 0; i < node.arg_count; ++i) args[i] = ids[node.args[i]];
    const NodeId copy = builder.remake(node, std::span(args.data(), node.arg_count));
    const bool is_scaled = node.op == Op::kScore && factor != kNoNode;
    ids.push_back(is_scaled ? builder.make(Op::kMul, {copy, factor}) : copy);
  }
  const NodeId keep = program.keep();
  return builder.finish(ids[program.value()], keep == kNoNode ? kNoNode : ids[keep]);
}

/// Has the spec of the keys' scales follow their declaration in of_stored_score().
void place_head_scales(AttentionProblem& stored) {
  for (OperandSpec& spec : stored.operands) {
    if (spec.name != kDescaleOfKeys) continue;
    spec.shape = {stored.heads_q};
    spec.strides.clear();
  }
}

}  // namespace

AttentionProblem stored_problem(const AttentionProblem& problem, DType dtype_o) {
  if (!has_float8_keys(problem)) fail_bug("a problem of ", to_string(problem.dtype), " has no FP8 tensors");
  AttentionProblem stored = problem;
  stored.program = of_stored_score(problem);
  if (has_head_scales(problem, kDescaleOfKeys)) place_head_scales(stored);
  stored.dtype = product_dtype(problem);
  stored.dtype_kv = std::nullopt;
  stored.dtype_o = dtype_o == stored.dtype ? std::nullopt : std::optional(dtype_o);
  stored.dtype_d_o = stored.dtype_gradients = std::nullopt;
  stored.amax_o = stored.amax_gradients = false;
  const TensorLayout queries{problem.tokens_q ? Layout::kTHD : Layout::kBSHD, {}};
  const TensorLayout keys{problem.tokens_kv ? Layout::kTHD : Layout::kBSHD, {}};
  if (is_float8(problem.dtype)) stored.q = queries;
  stored.o = queries;
  stored.k = stored.v = keys;
  stored.d_o = stored.dq = stored.dk = stored.dv = std::nullopt;
  // The mask has them already, but a problem with pages must have them.
  stored.lengths.kv = stored.lengths.kv || stored.paged.has_value();
  return stored;
}

}  // namespace scoremod::problem
