#include "problem/implied_operands.hpp"

#include <algorithm>

#include "base/fail.hpp"
#include "ir/builder.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::problem {
namespace {

std::optional<std::uint32_t> number_of(const Program& program, const std::string& name) {
  const std::vector<OperandDecl>& decls = program.operands();
  const auto found = std::ranges::find(decls, name, &OperandDecl::name);
  if (found == decls.end()) return std::nullopt;
  return static_cast<std::uint32_t>(found - decls.begin());
}

bool reads(const Program& program, std::uint32_t operand) {
  return std::ranges::any_of(program.nodes(), [&](const Node& node) {
    return (node.op == Op::kOperand || node.op == Op::kGather) && node.payload == operand;
  });
}

/// Copies a program into a builder; returns the nodes' ids there.
std::vector<NodeId> copy_program(const Program& program, ir::Builder& builder) {
  for (const OperandDecl& decl : program.operands()) builder.declare(decl);
  std::vector<NodeId> ids;
  for (const Node& node : program.nodes()) {
    std::array<NodeId, kMaxArgs> args = node.args;
    for (std::size_t i = 0; i < node.arg_count; ++i) args[i] = ids[node.args[i]];
    ids.push_back(builder.remake(node, std::span(args.data(), node.arg_count)));
  }
  return ids;
}

NodeId keep_of(const Program& program, const std::vector<NodeId>& ids) {
  return program.keep() == kNoNode ? kNoNode : ids[program.keep()];
}

Program with_declarations(const Program& program, const std::vector<OperandDecl>& more) {
  ir::Builder builder;
  const std::vector<NodeId> ids = copy_program(program, builder);
  for (const OperandDecl& decl : more) builder.declare(decl);
  return builder.finish(ids[program.value()], keep_of(program, ids));
}

}  // namespace

std::vector<OperandDecl> implied_operands(const AttentionProblem& problem) {
  constexpr std::array<bool, kAxisCount> kByBatch{true, false, false, false}, kByHead{false, true, false, false};
  std::vector<OperandDecl> decls;
  if (problem.lengths.q) decls.push_back({kLengthsOfQueries, Type::kI32, kByBatch, 0});
  if (problem.lengths.kv) decls.push_back({kLengthsOfKeys, Type::kI32, kByBatch, 0});
  if (problem.sink == Sink::kLearned) decls.push_back({kSinkOperand, Type::kF32, kByHead, 0});
  return decls;
}

void check_implied_operands(const AttentionProblem& problem) {
  for (const OperandDecl& implied : implied_operands(problem)) {
    const auto declared = number_of(problem.program, implied.name);
    if (!declared) continue;
    const bool is_sink = implied.name == kSinkOperand;
    if (problem.program.operands()[*declared] != implied) {
      fail_argument("program: expected operand '", implied.name, "' to be ", is_sink ? "f32 [h]" : "i32 [b]",
                    ", since the problem's ", is_sink ? "sink is" : "lengths are",
                    " bound by that name; found another declaration; rename the program's operand");
    }
    if (is_sink && reads(problem.program, *declared)) {
      fail_argument(
          "program: expected no program that reads operand 'sink', by whose name the problem's sink is bound;",
          " rename the program's operand");
    }
  }
}

AttentionProblem with_implied_operands(AttentionProblem problem) {
  std::vector<OperandDecl> missing = implied_operands(problem);
  for (const OperandDecl& decl : missing) {
    if (std::ranges::find(problem.operands, decl.name, &OperandSpec::name) == problem.operands.end()) {
      problem.operands.push_back(default_spec(problem, decl));
    }
  }
  std::erase_if(missing, [&](const OperandDecl& decl) { return number_of(problem.program, decl.name).has_value(); });
  if (!missing.empty()) problem.program = with_declarations(problem.program, missing);
  return problem;
}

std::optional<std::uint32_t> sink_operand(const AttentionProblem& problem) {
  if (problem.sink != Sink::kLearned) return std::nullopt;
  const auto number = number_of(problem.program, kSinkOperand);
  if (!number) fail_bug("a problem with a learned sink whose program does not declare it");
  return number;
}

AttentionProblem with_lengths_in_mask(AttentionProblem problem) {
  ir::Builder builder;
  const std::vector<NodeId> ids = copy_program(problem.program, builder);
  NodeId keep = keep_of(problem.program, ids);
  const auto bound = [&](Op index, const char* lengths) {
    const auto operand = number_of(problem.program, lengths);
    if (!operand) fail_bug("a problem with lengths whose program does not declare ", lengths);
    const NodeId below = builder.make(Op::kLt, {builder.leaf(index), builder.operand(*operand)});
    keep = keep == kNoNode ? below : builder.make(Op::kAnd, {keep, below});
  };
  if (problem.lengths.q) bound(Op::kQueryIdx, kLengthsOfQueries);
  if (problem.lengths.kv) bound(Op::kKeyIdx, kLengthsOfKeys);
  problem.program = builder.finish(ids[problem.program.value()], keep);
  problem.lengths = {};
  return problem;
}

}  // namespace scoremod::problem
