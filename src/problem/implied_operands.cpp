#include "problem/implied_operands.hpp"

#include <algorithm>

#include "base/fail.hpp"
#include "ir/copy_program.hpp"
#include "problem/call_dropout.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::problem {
namespace {

/// The dimensions of block scales: batch, heads, sequence and dim.
constexpr int kBlockScaleRank = 4;

bool reads(const Program& program, std::uint32_t operand) {
  return std::ranges::any_of(program.nodes(), [&](const Node& node) {
    return (node.op == Op::kOperand || node.op == Op::kGather) && node.payload == operand;
  });
}

NodeId keep_of(const Program& program, const std::vector<NodeId>& ids) {
  return program.keep() == kNoNode ? kNoNode : ids[program.keep()];
}

Program with_declarations(const Program& program, const std::vector<OperandDecl>& more) {
  ir::Builder builder;
  const std::vector<NodeId> ids = ir::copy_program(program, builder);
  for (const OperandDecl& decl : more) builder.declare(decl);
  return builder.finish(ids[program.value()], keep_of(program, ids));
}

/// The tokens of a batch in a varlen tensor: offsets[b + 1] - offsets[b].
NodeId tokens_of_batch(ir::Builder& builder, std::uint32_t offsets) {
  const NodeId batch = builder.leaf(Op::kBatchIdx);
  const NodeId next = builder.make(Op::kAdd, {batch, builder.constant(std::int32_t{1})});
  return builder.make(Op::kSub,
                      {builder.gather(offsets, std::span(&next, 1)), builder.gather(offsets, std::span(&batch, 1))});
}

/// The declaration as a message says it.
std::string type_of(const OperandDecl& decl) {
  if (decl.is_table()) return concat("a table of ", to_string(decl.type), " with rank ", decl.table_rank);
  if (decl.type == Type::kI32) return "i32 [b]";
  return decl.name == kSinkOperand ? "f32 [h]" : "f32 without axes";
}

bool has_float8_tensors(const AttentionProblem& problem) {
  return is_float8(problem.dtype) || is_float8(problem.dtype_kv.value_or(problem.dtype)) ||
         is_float8(problem.dtype_o.value_or(problem.dtype)) || is_float8(problem.dtype_d_o.value_or(problem.dtype));
}

const char* field_of(const std::string& operand) {
  if (operand.starts_with("descale_") || operand == kScaleOfOutput) return "scale of an FP8 tensor is";
  if (operand == kDropoutKeys) return "dropout's keys are";
  if (operand == kSinkOperand) return "sink is";
  if (operand == kOffsetsOfQueries || operand == kOffsetsOfKeys) return "offsets are";
  return operand == kPagesOfKeys || operand == kPagesOfValues ? "page tables are" : "lengths are";
}

}  // namespace

bool is_tensor_scale(const AttentionProblem& problem, std::string_view name) {
  if (name == kDescaleOfQueries) return is_float8(problem.dtype);
  if (name == kDescaleOfKeys || name == kDescaleOfValues) return has_float8_keys(problem);
  if (name == kScaleOfOutput) return is_float8(dtype_of(problem, TensorRole::kO));
  return name == kDescaleOfOutputGradient && problem.backward && is_float8(dtype_of(problem, TensorRole::kDO));
}

bool has_head_scales(const AttentionProblem& problem, std::string_view name) {
  if (!problem.dtype_kv || (name != kDescaleOfKeys && name != kDescaleOfValues)) return false;
  const auto spec = std::ranges::find(problem.operands, name, &OperandSpec::name);
  return spec != problem.operands.end() && spec->shape.size() == 1;
}

bool has_block_scales(const AttentionProblem& problem, std::string_view name) {
  if (!name.starts_with("descale_") || name == kDescaleOfOutputGradient || !is_tensor_scale(problem, name))
    return false;
  const auto spec = std::ranges::find(problem.operands, name, &OperandSpec::name);
  return spec != problem.operands.end() && spec->shape.size() == kBlockScaleRank;
}

bool has_block_scales(const AttentionProblem& problem) {
  return has_float8_tensors(problem) &&
         std::ranges::any_of(std::array{TensorRole::kQ, TensorRole::kK, TensorRole::kV},
                             [&](TensorRole role) { return has_block_scales(problem, descale_of(role)); });
}

bool has_row_scales(const AttentionProblem& problem) {
  if (!has_float8_keys(problem)) return false;
  bool has = false;
  for (const char* name : {kDescaleOfKeys, kDescaleOfValues}) {
    if (!has_block_scales(problem, name)) continue;
    if (std::ranges::find(problem.operands, name, &OperandSpec::name)->shape.back() != 1) return false;
    has = true;
  }
  return has;
}

const char* descale_of(TensorRole role) {
  switch (role) {
    case TensorRole::kQ: return kDescaleOfQueries;
    case TensorRole::kK: return kDescaleOfKeys;
    case TensorRole::kV: return kDescaleOfValues;
    case TensorRole::kDO: return kDescaleOfOutputGradient;
    default: return "";
  }
}

std::optional<std::uint32_t> operand_number(const Program& program, const std::string& name) {
  const std::vector<OperandDecl>& decls = program.operands();
  const auto found = std::ranges::find(decls, name, &OperandDecl::name);
  if (found == decls.end()) return std::nullopt;
  return static_cast<std::uint32_t>(found - decls.begin());
}

bool has_dropout_places(const AttentionProblem& problem) {
  const auto spec = std::ranges::find(problem.operands, kDropoutKeys, &OperandSpec::name);
  return problem.dropout_keys && spec != problem.operands.end() && spec->shape.size() == 2 &&
         spec->shape[1] == kPlacedDropoutKeyWords;
}

std::vector<std::int64_t> implied_table_shape(const AttentionProblem& problem, std::string_view name) {
  const bool of_queries = name == kOffsetsOfQueries;
  if (name == kDropoutKeys && problem.dropout_keys)
    return {problem.batch, has_dropout_places(problem) ? kPlacedDropoutKeyWords : kDropoutKeyWords};
  if ((of_queries && problem.tokens_q) || (name == kOffsetsOfKeys && problem.tokens_kv)) return {problem.batch + 1};
  if (has_head_scales(problem, name)) return {problem.heads_kv};
  const bool is_page_table = name == kPagesOfKeys || name == kPagesOfValues;
  if (is_page_table && problem.paged) return {problem.batch, problem.paged->blocks_per_sequence};
  return {};
}

std::vector<OperandDecl> implied_operands(const AttentionProblem& problem) {
  constexpr std::array<bool, kAxisCount> kByBatch{true, false, false, false}, kByHead{false, true, false, false};
  std::vector<OperandDecl> decls;
  if (problem.tokens_q) decls.push_back({kOffsetsOfQueries, Type::kI32, {}, 1});
  if (problem.tokens_kv) decls.push_back({kOffsetsOfKeys, Type::kI32, {}, 1});
  for (const char* name : {kPagesOfKeys, kPagesOfValues}) {
    if (problem.paged) decls.push_back({name, Type::kI32, {}, 2});
  }
  if (problem.lengths.q) decls.push_back({kLengthsOfQueries, Type::kI32, kByBatch, 0});
  if (problem.lengths.kv) decls.push_back({kLengthsOfKeys, Type::kI32, kByBatch, 0});
  if (problem.sink == Sink::kLearned) decls.push_back({kSinkOperand, Type::kF32, kByHead, 0});
  if (problem.dropout_keys) decls.push_back({kDropoutKeys, Type::kI32, {}, 2});
  if (!has_float8_tensors(problem)) return decls;
  for (const char* name :
       {kDescaleOfQueries, kDescaleOfKeys, kDescaleOfValues, kScaleOfOutput, kDescaleOfOutputGradient}) {
    if (!is_tensor_scale(problem, name)) continue;
    const int rank = has_head_scales(problem, name) ? 1 : has_block_scales(problem, name) ? kBlockScaleRank : 0;
    decls.push_back({name, Type::kF32, {}, rank});
  }
  return decls;
}

void check_implied_operands(const AttentionProblem& problem) {
  for (const OperandDecl& implied : implied_operands(problem)) {
    const auto declared = operand_number(problem.program, implied.name);
    if (!declared) continue;
    const bool is_read_by_none = implied.name == kSinkOperand || is_tensor_scale(problem, implied.name);
    if (problem.program.operands()[*declared] != implied) {
      fail_argument("program: expected operand '", implied.name, "' to be ", type_of(implied), ", since the problem's ",
                    field_of(implied.name),
                    " bound by that name; found another declaration; rename the program's operand");
    }
    if (is_read_by_none && reads(problem.program, *declared)) {
      fail_argument("program: expected no program that reads operand '", implied.name, "', since the problem's ",
                    field_of(implied.name), " bound by that name; rename the program's operand");
    }
  }
}

AttentionProblem with_implied_specs(AttentionProblem problem) {
  for (const OperandDecl& decl : implied_operands(problem)) {
    if (std::ranges::find(problem.operands, decl.name, &OperandSpec::name) != problem.operands.end()) continue;
    problem.operands.push_back(default_spec(problem, decl));
    if (decl.is_table()) problem.operands.back().shape = implied_table_shape(problem, decl.name);
  }
  return problem;
}

AttentionProblem with_implied_operands(AttentionProblem given) {
  AttentionProblem problem = with_implied_specs(std::move(given));
  std::vector<OperandDecl> missing = implied_operands(problem);
  std::erase_if(missing,
                [&](const OperandDecl& decl) { return operand_number(problem.program, decl.name).has_value(); });
  if (!missing.empty()) problem.program = with_declarations(problem.program, missing);
  return problem;
}

std::optional<std::uint32_t> sink_operand(const AttentionProblem& problem) {
  if (problem.sink != Sink::kLearned) return std::nullopt;
  const auto number = operand_number(problem.program, kSinkOperand);
  if (!number) fail_bug("a problem with a learned sink whose program does not declare it");
  return number;
}

AttentionProblem with_lengths_in_mask(AttentionProblem problem) {
  ir::Builder builder;
  const std::vector<NodeId> ids = ir::copy_program(problem.program, builder);
  NodeId keep = keep_of(problem.program, ids);
  const auto bound = [&](Op index, const char* lengths) {
    const auto operand = operand_number(problem.program, lengths);
    if (!operand) fail_bug("a problem with lengths whose program does not declare ", lengths);
    const bool is_table = problem.program.operands()[*operand].is_table();
    const NodeId length = is_table ? tokens_of_batch(builder, *operand) : builder.operand(*operand);
    const NodeId below = builder.make(Op::kLt, {builder.leaf(index), length});
    keep = keep == kNoNode ? below : builder.make(Op::kAnd, {keep, below});
  };
  if (problem.tokens_q) bound(Op::kQueryIdx, kOffsetsOfQueries);
  if (problem.tokens_kv) bound(Op::kKeyIdx, kOffsetsOfKeys);
  if (problem.lengths.q) bound(Op::kQueryIdx, kLengthsOfQueries);
  if (problem.lengths.kv) bound(Op::kKeyIdx, kLengthsOfKeys);
  problem.program = builder.finish(ids[problem.program.value()], keep);
  problem.lengths = {};
  return problem;
}

}  // namespace scoremod::problem
