#include "masks/tile_mask_analyzer.hpp"

#include <algorithm>

#include "analysis/keep_nodes.hpp"
#include "ir/builder.hpp"
#include "ir/op_table.hpp"

namespace scoremod::masks {
namespace {

bool is_comparison(Op op) { return op >= Op::kEq && op <= Op::kGe; }

analysis::ValueRange index_range(const analysis::IndexRange& range) {
  return {static_cast<double>(range.first), static_cast<double>(range.last), false};
}

}  // namespace

analysis::ValueRange OperandRanges::broadcast(std::uint32_t, Type type) const { return analysis::everything(type); }
analysis::ValueRange OperandRanges::table(std::uint32_t, Type type, std::span<const analysis::ValueRange>) const {
  return analysis::everything(type);
}

TileMaskAnalyzer::TileMaskAnalyzer(const Program& program) {
  const std::vector<bool> needed = analysis::keep_nodes(program);
  const std::vector<std::optional<analysis::AffineForm>> forms = analysis::affine_forms(program);
  std::vector<NodeId> step_of(program.nodes().size(), kNoNode);
  for (NodeId id = 0; id < program.nodes().size(); ++id) {
    if (!needed[id]) continue;
    Step step;
    step.node = program.nodes()[id];
    std::optional<analysis::AffineForm> form = forms[id];
    if (step.node.arg_count > 0) step.arg_type = program.nodes()[step.node.args[0]].type;
    if (is_comparison(step.node.op) && step.arg_type != Type::kBool) {
      const auto& left = forms[step.node.args[0]];
      const auto& right = forms[step.node.args[1]];
      if (left && right) form = difference(*left, *right);
    }
    if (form) {
      step.form = static_cast<std::int32_t>(forms_.size());
      forms_.push_back(*form);
    }
    for (std::size_t i = 0; i < step.node.arg_count; ++i) step.node.args[i] = step_of[step.node.args[i]];
    step_of[id] = static_cast<NodeId>(steps_.size());
    steps_.push_back(step);
  }
}

TileMaskAnalyzer::Scratch TileMaskAnalyzer::make_scratch() const {
  Scratch scratch;
  scratch.values_.resize(steps_.size());
  return scratch;
}

std::span<const analysis::ValueRange> TileMaskAnalyzer::argument_ranges(
    const Node& node, const Scratch& scratch, std::array<analysis::ValueRange, kMaxArgs>& ranges) {
  // Never more than there are; the compiler, which does not know, would warn.
  const std::size_t count = std::min<std::size_t>(node.arg_count, ranges.size());
  for (std::size_t i = 0; i < count; ++i) ranges[i] = scratch.values_[node.args[i]].range;
  return std::span(ranges).first(count);
}

analysis::ValueRange TileMaskAnalyzer::leaf_range(const Step& step, const analysis::IndexBox& tile,
                                                  const OperandRanges& operands, const Scratch& scratch) const {
  const Node& node = step.node;
  switch (node.op) {
    case Op::kBatchIdx: return index_range(tile[0]);
    case Op::kHeadIdx: return index_range(tile[1]);
    case Op::kQueryIdx: return index_range(tile[2]);
    case Op::kKeyIdx: return index_range(tile[3]);
    case Op::kConstant: return analysis::constant_range(node);
    case Op::kOperand: return operands.broadcast(node.payload, node.type);
    case Op::kGather: {
      std::array<analysis::ValueRange, kMaxArgs> indices;
      return operands.table(node.payload, node.type, argument_ranges(node, scratch, indices));
    }
    default: return analysis::everything(node.type);  // the score
  }
}

void TileMaskAnalyzer::analyze_step(const Step& step, const analysis::IndexBox& tile, const OperandRanges& operands,
                                    Scratch& scratch, Scratch::Value& out) const {
  const Node& node = step.node;
  out.affine = step.form >= 0;
  for (const NodeId arg : ir::args_of(node)) out.affine = out.affine && scratch.values_[arg].affine;
  if (ir::info(node.op).signature == ir::Signature::kLeaf) {
    out.range = leaf_range(step, tile, operands, scratch);
    return;
  }
  if (out.affine) {
    const analysis::IndexRange exact = range_over(forms_[static_cast<std::size_t>(step.form)], tile);
    if (is_comparison(node.op)) {
      const std::array<analysis::ValueRange, 2> sides{index_range(exact), analysis::ValueRange{}};
      out.range = analysis::range_of_op(node, Type::kI32, sides);
      return;
    }
    if (is_exact(exact, node.type)) {
      out.range = index_range(exact);
      return;
    }
    out.affine = false;
  }
  std::array<analysis::ValueRange, kMaxArgs> args;
  out.range = analysis::range_of_op(node, step.arg_type, argument_ranges(node, scratch, args));
}

TileMask TileMaskAnalyzer::analyze(const analysis::IndexBox& tile, const OperandRanges& operands,
                                   Scratch& scratch) const {
  if (steps_.empty()) return TileMask::kFull;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    analyze_step(steps_[i], tile, operands, scratch, scratch.values_[i]);
  }
  const analysis::ValueRange& keep = scratch.values_.back().range;
  if (keep.always_false()) return TileMask::kEmpty;
  return keep.always_true() ? TileMask::kFull : TileMask::kMixed;
}

}  // namespace scoremod::masks
