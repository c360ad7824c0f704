#include "backend/kernels/shared/settings.hpp"

#include <algorithm>
#include <array>

#include "problem/implied_operands.hpp"

namespace scoremod::backend::kernels {
namespace {

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

const char* flag(bool value) { return value ? "true" : "false"; }

void set_problem(Holes& holes, const AttentionProblem& problem) {
  holes.set("bf16", flag(half_dtype(problem) == DType::kBF16));
  holes.set("floats", flag(problem.dtype == DType::kF32));
  holes.set("dim_qk", problem.dim_qk);
  holes.set("dim_v", problem.dim_v);
  holes.set("index_offsets", flag(problem.index_offsets));
  holes.set("given_deltas", flag(problem.given_deltas));
  holes.set("has_sink", flag(problem.sink != Sink::kNone));
  holes.set("dropout", flag(problem.dropout > 0));
  holes.set("dropout_keys", flag(problem.dropout_keys));
  holes.set("dropout_places", flag(problem::has_dropout_places(problem)));
  holes.set("max_logit", flag(problem.max_logit));
  holes.set("ragged_queries", flag(problem.tokens_q.has_value()));
  holes.set("ragged_keys", flag(problem.tokens_kv.has_value()));
  holes.set("paged", flag(problem.paged.has_value()));
  holes.set("block_rows", problem.paged ? problem.paged->block_size : 1);
  holes.set("output", output_kind(problem));
}

void set_program(Holes& holes, const AttentionProblem& problem, const Program& program, const MaskKnowledge& mask) {
  const bool score_is_value =
      program.nodes()[program.value()].op == Op::kScore && mask.kind != MaskKnowledge::Kind::kScore;
  holes.set("clamps_queries", flag(clamps_along(program, Axis::kQuery)));
  holes.set("clamps_keys", flag(clamps_along(program, Axis::kKey)));
  holes.set("computes_with_indices", flag(computes_with_indices(program)));
  holes.set("operands", std::max<std::size_t>(problem.program.operands().size(), 1));
  holes.set("reads_operands", flag(!problem.program.operands().empty()));
  holes.set("score_is_value", flag(score_is_value));
}

void set_shape(Holes& holes, const TileShape& shape) {
  holes.set("float_tiles", flag(shape.holds_floats()));
  holes.set("queries", shape.queries);
  holes.set("keys", shape.keys);
  holes.set("warps", shape.warps);
  holes.set("row_tiles", shape.row_tiles);
  holes.set("step", shape.step);
  holes.set("part", shape.part);
  holes.set("key_step", shape.key_step);
  holes.set("blocks", shape.blocks);
  holes.set("pack_gqa", flag(is_split_kv(shape.family)));
  holes.set("teams", shape.teams);
  holes.set("producers", shape.producers());
  holes.set("stages", shape.stages);
  holes.set("persistent", flag(shape.persistent_ctas > 0));
  holes.set("separate_dv", flag(shape.separate_dv));
  holes.set("fused", flag(shape.fused));
  holes.set("recomputed_delta", flag(shape.recomputed_delta));
}

void set_targets(Holes& holes, const OperandText& operands) {
  holes.set("row_targets", operands.row_targets());
  holes.set("key_targets", operands.key_targets());
  holes.set("difference_targets", operands.difference_targets());
  holes.set("table_reads", operands.table_reads());
  holes.set("shared_targets", operands.shared_targets());
  holes.set("targets", operands.targets());
}

void set_mask(Holes& holes, const MaskKnowledge& mask) {
  static constexpr std::array<const char*, 3> kKinds{"kBandMask", "kScoreMask", "kListedMask"};
  holes.set("mask_kind", kKinds[static_cast<std::size_t>(mask.kind)]);
  holes.set("has_states", flag(mask.has_states()));
  holes.set("mask_varies_with_batch", flag(mask.varies_with_batch));
  holes.set("mask_varies_with_head", flag(mask.varies_with_head));
  holes.set("mask_varies_with_query", flag(mask.varies_with_query));
}

}  // namespace

void fill_settings(Holes& holes, const compiler::CompiledProblem& compiled, const TileShape& shape,
                   const MaskKnowledge& mask, const OperandText& operands) {
  set_problem(holes, compiled.problem);
  set_program(holes, compiled.problem, compiled.forward.program, mask);
  set_shape(holes, shape);
  set_targets(holes, operands);
  set_mask(holes, mask);
}

}  // namespace scoremod::backend::kernels
