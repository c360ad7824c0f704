#include "backend/reference/strip_evaluator.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include "base/element.hpp"
#include "base/fail.hpp"
#include "ir/builder.hpp"

namespace scoremod::backend::reference {
StripEvaluator::StripEvaluator(const Program& program, const std::vector<OperandView>& operands,
                               const IndexOffsets& offsets, std::int64_t keys)
    : program_(program), operands_(operands), offsets_(offsets), all_keys_(static_cast<std::size_t>(keys)) {
  if (program.operands().size() != operands.size()) fail_bug("a program's operands are not those of its problem");
  for (const Node& node : program.nodes()) {
    Values values;
    values.level = level_of(node);
    const std::size_t lanes = values.level == Level::kKey ? all_keys_ : values.level == Level::kScore ? kMaxKeys : 1;
    if (node.type == Type::kF32) values.f.resize(lanes);
    if (node.type == Type::kI32) values.i.resize(lanes);
    if (node.type == Type::kBool) values.b.resize(lanes);
    values_.push_back(std::move(values));
  }
}

StripEvaluator::Level StripEvaluator::level_of(const Node& node) const {
  bool by_query = node.op == Op::kQueryIdx, by_key = node.op == Op::kKeyIdx;
  if (node.op == Op::kScore || node.op == Op::kUpstream) return Level::kScore;
  if (node.op == Op::kOperand) {
    by_query = operands_[node.payload].decl.axes[static_cast<std::size_t>(Axis::kQuery)];
    by_key = operands_[node.payload].decl.axes[static_cast<std::size_t>(Axis::kKey)];
  }
  for (const NodeId arg : ir::args_of(node)) {
    const Level level = values_[arg].level;
    by_query |= level == Level::kQuery || level == Level::kScore;
    by_key |= level == Level::kKey || level == Level::kScore;
  }
  if (by_query && by_key) return Level::kScore;
  return by_query ? Level::kQuery : by_key ? Level::kKey : Level::kHead;
}

void StripEvaluator::begin_head(std::int64_t batch, std::int64_t head) {
  element_ = {batch, head, 0, 0};
  run(Level::kHead, 0, 1);
  run(Level::kKey, 0, all_keys_);
}

void StripEvaluator::begin_query(std::int64_t query) {
  element_.query = query;
  run(Level::kQuery, 0, 1);
}

void StripEvaluator::evaluate(std::int64_t first, std::size_t count, const double* scores, const double* upstream) {
  scores_ = scores;
  upstream_ = upstream;
  run(Level::kScore, first, count);
}

void StripEvaluator::run(Level level, std::int64_t first, std::size_t count) {
  element_.key = first;
  count_ = count;
  for (NodeId id = 0; id < values_.size(); ++id) {
    if (values_[id].level == level) compute(id);
  }
}

Lanes StripEvaluator::at(NodeId node) const {
  const Values& values = values_[node];
  if (program_.nodes()[node].op == Op::kScore) return {scores_, nullptr, nullptr, 1};
  if (program_.nodes()[node].op == Op::kUpstream) return {upstream_, nullptr, nullptr, 1};
  const bool shared = values.level == Level::kHead || values.level == Level::kQuery;
  const std::int64_t first = values.level == Level::kKey ? element_.key : 0;
  const auto from_first = [&](const auto& lanes) { return lanes.empty() ? nullptr : lanes.data() + first; };
  return {from_first(values.f), from_first(values.i), from_first(values.b), shared ? 0u : 1u};
}

void StripEvaluator::compute(NodeId id) {
  const Node& node = program_.nodes()[id];
  Values& out = values_[id];
  if (ir::info(node.op).signature == ir::Signature::kLeaf) return compute_leaf(node, out);
  std::array<Lanes, kMaxArgs> args;
  for (std::size_t i = 0; i < std::min<std::size_t>(node.arg_count, kMaxArgs); ++i) args[i] = at(node.args[i]);
  const Type arg_type = node.arg_count > 0 ? program_.nodes()[node.args[0]].type : node.type;
  compute_lanes(node, arg_type, args, count_, {out.f.data(), out.i.data(), out.b.data()});
}

void StripEvaluator::compute_leaf(const Node& node, Values& out) {
  const auto index = [](std::int64_t local, std::int32_t offset) { return static_cast<std::int32_t>(local + offset); };
  switch (node.op) {
    case Op::kScore:
    case Op::kUpstream: return;  // read where the caller has them
    case Op::kBatchIdx: out.i[0] = index(element_.batch, offsets_.batch); return;
    case Op::kHeadIdx: out.i[0] = index(element_.head, offsets_.head); return;
    case Op::kQueryIdx: out.i[0] = index(element_.query, offsets_.query); return;
    case Op::kKeyIdx:
      for (std::size_t i = 0; i < count_; ++i)
        out.i[i] = index(element_.key + static_cast<std::int64_t>(i), offsets_.key);
      return;
    case Op::kConstant: {
      const ir::Scalar<double> value = ir::constant_value<double>(node);
      if (node.type == Type::kF32) out.f[0] = value.f;
      if (node.type == Type::kI32) out.i[0] = value.i;
      if (node.type == Type::kBool) out.b[0] = value.b ? 1 : 0;
      return;
    }
    default: return read_operand(node, out);
  }
}

template <class Body>
void StripEvaluator::for_each_place(const OperandView& operand, std::span<const NodeId> indices,
                                    const std::array<std::int64_t, kMaxTableRank>& strides, const Body& body) const {
  if (!operand.decl.is_table()) {
    const std::array<std::int64_t, kAxisCount> local{element_.batch, element_.head, element_.query, element_.key};
    std::int64_t place = 0, step = 0;
    std::size_t rank = 0;
    for (std::size_t axis = 0; axis < local.size(); ++axis) {
      if (!operand.decl.axes[axis]) continue;
      if (axis == static_cast<std::size_t>(Axis::kKey)) step = strides[rank];
      place += strides[rank++] * local[axis];
    }
    for (std::size_t lane = 0; lane < count_; ++lane, place += step) body(lane, place);
    return;
  }
  std::array<Lanes, kMaxTableRank> at_dim;
  for (std::size_t d = 0; d < indices.size(); ++d) at_dim[d] = at(indices[d]);
  for (std::size_t lane = 0; lane < count_; ++lane) {
    std::int64_t place = 0;
    for (std::size_t d = 0; d < indices.size(); ++d) {
      const std::int64_t index = at_dim[d].i[lane * at_dim[d].step];
      place += strides[d] * std::clamp<std::int64_t>(index, 0, operand.shape[d] - 1);
    }
    body(lane, place);
  }
}

void StripEvaluator::read_operand(const Node& node, Values& out) {
  const OperandView& operand = operands_[node.payload];
  for_each_place(operand, ir::args_of(node), operand.strides, [&](std::size_t lane, std::int64_t offset) {
    switch (operand.decl.type) {
      case Type::kF32: out.f[lane] = load_element<double>(operand.data, operand.dtype, offset); break;
      case Type::kI32: out.i[lane] = load_element<std::int32_t>(operand.data, operand.dtype, offset); break;
      case Type::kBool: out.b[lane] = load_element<bool>(operand.data, operand.dtype, offset) ? 1 : 0; break;
    }
  });
}

void StripEvaluator::write_kept(std::uint8_t* kept) const {
  const Lanes value = at(program_.value());
  const NodeId root = program_.keep();
  const Lanes keep = root == kNoNode ? Lanes{} : at(root);
  for (std::size_t i = 0; i < count_; ++i) {
    const bool allowed = keep.b == nullptr || keep.b[i * keep.step] != 0;
    kept[i] = allowed && value.f[i * value.step] != -std::numeric_limits<double>::infinity() ? 1 : 0;
  }
}

void StripEvaluator::add_contributions(const Root& root, const std::uint8_t* kept,
                                       std::vector<double>& gradient) const {
  const Lanes values = at(root.node);
  const OperandView& operand = operands_[root.operand];
  std::array<std::int64_t, kMaxTableRank> dense{};
  std::int64_t step = 1;
  for (std::size_t d = operand.shape.size(); d-- > 0; step *= operand.shape[d]) dense[d] = step;
  for_each_place(operand, ir::indices_of(program_, root), dense, [&](std::size_t lane, std::int64_t entry) {
    if (kept[lane] != 0) gradient[static_cast<std::size_t>(entry)] += values.f[lane * values.step];
  });
}

}  // namespace scoremod::backend::reference
