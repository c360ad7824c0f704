#include "backend/reference/interpreter.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/element.hpp"
#include "base/fail.hpp"
#include "ir/builder.hpp"
#include "ir/op_rounding.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::reference {

std::int64_t OperandView::size() const {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

std::int64_t OperandView::dense_index(std::span<const std::int64_t> indices) const {
  std::int64_t index = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    index = index * shape[d] + std::clamp<std::int64_t>(indices[d], 0, shape[d] - 1);
  }
  return index;
}

std::int64_t OperandView::offset(std::int64_t dense_index) const {
  std::int64_t distance = 0;
  for (std::size_t d = shape.size(); d-- > 0;) {
    distance += dense_index % shape[d] * strides[d];
    dense_index /= shape[d];
  }
  return distance;
}

std::vector<OperandView> view_operands(const AttentionProblem& problem, std::span<const void* const> data) {
  const std::vector<OperandDecl>& decls = problem.program.operands();
  if (data.size() != decls.size()) fail_bug("expected ", decls.size(), " operands, found ", data.size());
  std::vector<OperandView> views;
  for (std::uint32_t i = 0; i < decls.size(); ++i) {
    const OperandSpec& spec = problem::spec_of(problem, i);
    views.push_back({decls[i], spec.dtype, data[i], spec.shape, problem::strides_of(spec)});
  }
  return views;
}

template <class Real>
Interpreter<Real>::Interpreter(const Program& program, const std::vector<OperandView>& operands,
                               const IndexOffsets& offsets)
    : program_(program), operands_(operands), offsets_(offsets), values_(program.nodes().size()) {
  if (program.operands().size() != operands.size()) fail_bug("a program's operands are not those of its problem");
}

template <class Real>
bool Interpreter<Real>::keeps() const {
  const NodeId keep = program_.keep();
  return (keep == kNoNode || values_[keep].b) && value() != -std::numeric_limits<Real>::infinity();
}

template <class Real>
void Interpreter<Real>::evaluate(const Element& element, Real score, Real upstream) {
  element_ = element;
  const std::vector<Node>& nodes = program_.nodes();
  std::array<ir::Scalar<Real>, kMaxArgs> args;
  for (std::size_t id = 0; id < nodes.size(); ++id) {
    const Node& node = nodes[id];
    if (ir::info(node.op).signature == ir::Signature::kLeaf) {
      values_[id] = leaf(node, score, upstream);
      continue;
    }
    for (std::size_t i = 0; i < ir::args_of(node).size() && i < args.size(); ++i) args[i] = values_[node.args[i]];
    values_[id] = ir::eval_op<Real>(node, nodes[node.args[0]].type, std::span(args).first(node.arg_count));
    if (function_move_ != 0 && node.type == Type::kF32) values_[id].f = moved(node.op, values_[id].f);
  }
}

template <class Real>
Real Interpreter<Real>::moved(Op op, Real result) const {
  if (ir::rounding_of(op) != ir::Rounding::kFunction || !std::isfinite(result)) return result;
  // By more than themselves these would become negative, and their logarithms nothing.
  constexpr std::array kWithoutZero{Op::kExp, Op::kExp2,       Op::kSigmoid, Op::kSoftplus,
                                    Op::kPow, Op::kReciprocal, Op::kRsqrt,   Op::kErfc};
  const bool has_no_zero = std::ranges::find(kWithoutZero, op) != kWithoutZero.end();
  const double size = std::abs(static_cast<double>(result));
  return static_cast<Real>(static_cast<double>(result) + function_move_ * (has_no_zero ? size : std::max(1.0, size)));
}

template <class Real>
ir::Scalar<Real> Interpreter<Real>::leaf(const Node& node, Real score, Real upstream) const {
  const auto as_index = [](std::int64_t local, std::int32_t offset) {
    ir::Scalar<Real> out;
    out.i = static_cast<std::int32_t>(local + offset);
    return out;
  };
  ir::Scalar<Real> out;
  switch (node.op) {
    case Op::kScore: out.f = score; return out;
    case Op::kUpstream: out.f = upstream; return out;
    case Op::kBatchIdx: return as_index(element_.batch, offsets_.batch);
    case Op::kHeadIdx: return as_index(element_.head, offsets_.head);
    case Op::kQueryIdx: return as_index(element_.query, offsets_.query);
    case Op::kKeyIdx: return as_index(element_.key, offsets_.key);
    case Op::kConstant: return ir::constant_value<Real>(node);
    case Op::kOperand:
    case Op::kGather: {
      const OperandView& operand = operands_[node.payload];
      return read(operand, entry_of(operand, ir::args_of(node)));
    }
    default: fail_bug("the reference does not know the leaf '", ir::info(node.op).name, "'");
  }
}

template <class Real>
ir::Scalar<Real> Interpreter<Real>::read(const OperandView& operand, std::int64_t entry) const {
  const std::int64_t offset = operand.offset(entry);
  ir::Scalar<Real> out;
  switch (operand.decl.type) {
    case Type::kF32: out.f = load_element<Real>(operand.data, operand.dtype, offset); break;
    case Type::kI32: out.i = load_element<std::int32_t>(operand.data, operand.dtype, offset); break;
    case Type::kBool: out.b = load_element<bool>(operand.data, operand.dtype, offset); break;
  }
  return out;
}

template <class Real>
std::int64_t Interpreter<Real>::entry_of(const OperandView& operand, std::span<const NodeId> indices) const {
  std::array<std::int64_t, kMaxTableRank> position{};
  std::size_t rank = 0;
  if (operand.decl.is_table()) {
    for (const NodeId index : indices) position[rank++] = values_[index].i;
  } else {
    const std::array<std::int64_t, kAxisCount> local{element_.batch, element_.head, element_.query, element_.key};
    for (std::size_t axis = 0; axis < local.size(); ++axis) {
      if (operand.decl.axes[axis]) position[rank++] = local[axis];
    }
  }
  return operand.dense_index(position);
}

template <class Real>
ir::Scalar<Real> Interpreter<Real>::gathered(const Node& node, std::span<const std::int64_t> indices) const {
  const OperandView& operand = operands_[node.payload];
  return read(operand, operand.dense_index(indices));
}

template <class Real>
std::int64_t Interpreter<Real>::target_entry(const Root& root) const {
  return entry_of(operands_[root.operand], ir::indices_of(program_, root));
}

template class Interpreter<float>;
template class Interpreter<double>;

}  // namespace scoremod::backend::reference
