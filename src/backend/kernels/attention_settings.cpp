#include "backend/kernels/attention_settings.hpp"

#include <algorithm>
#include <array>

#include "backend/cuda/kernel_text.hpp"
#include "backend/kernels/hopper_shape.hpp"
#include "problem/implied_operands.hpp"

namespace scoremod::embedded {
extern const std::string_view kAttentionSettings;
}  // namespace scoremod::embedded

namespace scoremod::backend::kernels {
namespace {

using cuda::fill;

/// The 16-bit dtype of the kernels: that of q, k and v, or of o if only o has one.
DType half_dtype(const AttentionProblem& problem) {
  return problem.dtype == DType::kF32 ? problem.dtype_o.value_or(DType::kBF16) : problem.dtype;
}

/// Whether an operand has numbers of its own along the axis, or there is no mask. A table's indices are clamped where
/// it is read.
bool clamps_along(const Program& program, Axis axis) {
  return program.keep() == kNoNode || std::ranges::any_of(program.operands(), [&](const OperandDecl& operand) {
           return !operand.is_table() && operand.axes[static_cast<std::size_t>(axis)];
         });
}

/// Whether the program, but for what its operands are read at, computes with a query's or a key's index.
bool computes_with_indices(const Program& program) {
  return std::ranges::any_of(program.nodes(),
                             [](const Node& node) { return node.op == Op::kQueryIdx || node.op == Op::kKeyIdx; });
}

const char* output_kind(const AttentionProblem& problem) {
  const DType output = problem.dtype_o.value_or(problem.dtype);
  if (output == DType::kF32) return "kFloatOutput";
  return output == half_dtype(problem) ? "kHalfOutput" : "kOtherHalfOutput";
}

}  // namespace

std::string text_of_settings(const compiler::CompiledProblem& compiled, const TileShape& shape,
                             const MaskKnowledge& mask, const OperandText& operands) {
  const AttentionProblem& problem = compiled.problem;
  const Program& program = compiled.forward.program;
  const bool score_is_value =
      program.nodes()[program.value()].op == Op::kScore && mask.kind != MaskKnowledge::Kind::kScore;
  static constexpr std::array<const char*, 3> kKinds{"kBandMask", "kScoreMask", "kListedMask"};
  static constexpr std::array<const char*, 3> kDqOrders{"kFenceAtOnce", "kLateFence", "kEarlyAdditions"};
  const auto flag = [](bool value) { return value ? "true" : "false"; };
  const int query_stages = hopper_query_stages(shape, problem.dim_qk, problem.dim_v);
  return fill(embedded::kAttentionSettings, {{"bf16", flag(half_dtype(problem) == DType::kBF16)},
                                             {"index_offsets", flag(problem.index_offsets)},
                                             {"floats", flag(problem.dtype == DType::kF32)},
                                             {"float_tiles", flag(shape.holds_floats())},
                                             {"dim_qk", problem.dim_qk},
                                             {"dim_v", problem.dim_v},
                                             {"clamps_queries", flag(clamps_along(program, Axis::kQuery))},
                                             {"clamps_keys", flag(clamps_along(program, Axis::kKey))},
                                             {"computes_with_indices", flag(computes_with_indices(program))},
                                             {"operands", std::max<std::size_t>(problem.program.operands().size(), 1)},
                                             {"reads_operands", flag(!problem.program.operands().empty())},
                                             {"queries", shape.queries},
                                             {"keys", shape.keys},
                                             {"warps", shape.warps},
                                             {"row_tiles", shape.row_tiles},
                                             {"step", shape.step},
                                             {"part", shape.part},
                                             {"key_step", shape.key_step},
                                             {"score_is_value", flag(score_is_value)},
                                             {"blocks", shape.blocks},
                                             {"packed_heads", flag(is_few_queries(shape.family))},
                                             {"teams", shape.teams},
                                             {"producers", shape.producers()},
                                             {"stages", shape.stages},
                                             {"key_stages", shape.key_stages},
                                             {"box_rows", kHopperBoxRows},
                                             {"persistent", flag(shape.persistent_blocks > 0)},
                                             {"query_stages", query_stages},
                                             {"copies_operand", flag(shape.copied_operand.has_value())},
                                             {"split_keys", flag(shape.split_keys)},
                                             {"fused", flag(shape.fused)},
                                             {"dq_order", kDqOrders[static_cast<std::size_t>(shape.dq_order)]},
                                             {"own_deltas", flag(shape.own_deltas)},
                                             {"given_deltas", flag(problem.given_deltas)},
                                             {"sink", flag(problem.sink != Sink::kNone)},
                                             {"dropout", flag(problem.dropout > 0)},
                                             {"dropout_keys", flag(problem.dropout_keys)},
                                             {"dropout_places", flag(problem::has_dropout_places(problem))},
                                             {"max_logit", flag(problem.max_logit)},
                                             {"ragged_queries", flag(problem.tokens_q.has_value())},
                                             {"ragged_keys", flag(problem.tokens_kv.has_value())},
                                             {"paged", flag(problem.paged.has_value())},
                                             {"block_rows", problem.paged ? problem.paged->block_size : 1},
                                             {"output", output_kind(problem)},
                                             {"row_targets", operands.row_targets()},
                                             {"key_targets", operands.key_targets()},
                                             {"difference_targets", operands.difference_targets()},
                                             {"table_reads", operands.table_reads()},
                                             {"shared_targets", operands.shared_targets()},
                                             {"targets", operands.targets()},
                                             {"mask", kKinds[static_cast<std::size_t>(mask.kind)]},
                                             {"has_states", flag(mask.has_states())},
                                             {"mask_varies_with_batch", flag(mask.varies_with_batch)},
                                             {"mask_varies_with_head", flag(mask.varies_with_head)},
                                             {"mask_varies_with_query", flag(mask.varies_with_query)}});
}

}  // namespace scoremod::backend::kernels
