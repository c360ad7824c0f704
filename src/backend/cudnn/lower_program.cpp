#include "backend/cudnn/lower_program.hpp"

#include <algorithm>
#include <limits>

#include "backend/cudnn/lower_op.hpp"
#include "backend/cudnn/operand_form.hpp"
#include "base/fail.hpp"
#include "ir/builder.hpp"
#include "passes/classify_mask.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::cudnn {
namespace {

/// Lengths that are a multiple of these have no partial tile, whatever kernel cuDNN chooses.
constexpr std::int64_t kQueryTile = 128;
constexpr std::int64_t kKeyTile = 128;

constexpr float kMasked = -std::numeric_limits<float>::infinity();

Value constant(const Node& node) {
  switch (node.type) {
    case Type::kF32: return GraphWriter::constant(ir::constant_f32(node));
    case Type::kI32: return GraphWriter::constant(ir::constant_i32(node));
    case Type::kBool: break;
  }
  throw NoForm{"a bool constant has no form; simplify removes it where the passes run"};
}

}  // namespace

const Program& program_of(const compiler::CompiledProblem& problem, const LoweringOptions& options) {
  return options.backward ? *problem.derivative : problem.program;
}

ProgramLowering::ProgramLowering(const compiler::CompiledProblem& problem, const LoweringOptions& options,
                                 const std::vector<passes::Dependence>& dependence, std::vector<bool>& computed,
                                 LoweredModifier& out)
    : problem_(problem),
      program_(program_of(problem, options)),
      options_(options),
      dependence_(dependence),
      computed_(computed),
      sizes_{problem.problem.batch, problem.problem.heads_q, problem.problem.seq_q, problem.problem.seq_kv},
      out_(out),
      writer_(options.allowed, out),
      values_(program_.nodes().size()) {}

void ProgramLowering::run() {
  Value value = visit(program_.value());
  if (!dependence_[program_.value()].score) value = beside_score(value);
  value = writer_.lift(value);
  if (options_.backward) value = cut_tail(value, kMasked);
  value = mask(value);
  out_.graph.value = value.ref;
  out_.graph.forward_count = static_cast<std::uint32_t>(out_.graph.nodes.size());
  if (options_.backward) adjoint();
}

void ProgramLowering::adjoint() {
  for (const Root& root : program_.roots()) {
    if (root.kind != RootKind::kScoreAdjoint) continue;
    const Value d_score = visit(root.node);
    // The upstream gradient itself: cuDNN passes it through without a callback.
    if (d_score.ref.kind == Ref::Kind::kUpstream) return;
    out_.graph.d_score = dependence_[root.node].score ? cut_tail(writer_.lift(d_score), 0).ref : no_gradient().ref;
  }
}

/// cuDNN refuses a graph whose modifier does not read the score (9.19).
Value ProgramLowering::beside_score(Value value) {
  constexpr const char* kForm = "value.without_score";
  if (writer_.allowed(kForm)) {
    writer_.use(kForm);
    return value;
  }
  const Value score{{Ref::Kind::kScore, 0, 0, 0}, Type::kF32};
  writer_.use("value.beside_score");
  const Value never = writer_.compare(Mode::kCmpGt, score, GraphWriter::constant(-kMasked));
  return writer_.select(never, score, value);
}

/// An adjoint that does not depend on the upstream gradient is zero, and cuDNN refuses one that does not read it
/// (9.19).
Value ProgramLowering::no_gradient() {
  const Value upstream{{Ref::Kind::kUpstream, 0, 0, 0}, Type::kF32};
  return cut_tail(writer_.binary(Mode::kMul, upstream, GraphWriter::constant(0.0f)), 0);
}

/// keep == terms AND band: the terms as a select, then the band last, where cuDNN recognises it and skips tiles.
Value ProgramLowering::mask(Value value) {
  const passes::MaskClass mask = classify();
  if (mask.kind == passes::MaskKind::kEmpty) {
    const Value nowhere =
        writer_.compare(Mode::kCmpLt, writer_.index(Axis::kKey), GraphWriter::constant(std::int32_t{0}));
    return writer_.select(nowhere, value, GraphWriter::constant(kMasked));
  }
  for (const passes::MaskTerm& term : mask.terms) {
    value = writer_.select(visit(term.node), value, GraphWriter::constant(kMasked));
  }
  if (!mask.band) return value;
  return band(value, passes::top_left(*mask.band, problem_.problem.seq_q, problem_.problem.seq_kv));
}

/// The band nodes count local indices. With offsets, which differ from call to call, global ones are compared.
Value ProgramLowering::band(Value value, const passes::Band& band) {
  if (options_.with_offsets) {
    const Value distance = writer_.binary(Mode::kSub, index(Axis::kKey), index(Axis::kQuery));
    const auto end = [&](Mode mode, std::int64_t bound) {
      return writer_.compare(mode, distance, GraphWriter::constant(static_cast<std::int32_t>(bound)));
    };
    if (band.right) value = writer_.select(end(Mode::kCmpLe, *band.right), value, GraphWriter::constant(kMasked));
    if (band.left) value = writer_.select(end(Mode::kCmpGe, -*band.left), value, GraphWriter::constant(kMasked));
    return value;
  }
  // -left <= kv - q is kv - q > -(left + 1).
  if (band.right) value = writer_.band(value, {false, *band.right});
  if (band.left) value = writer_.band(value, {true, *band.left + 1});
  return value;
}

/// The mask of the program that is being lowered: the derivative's nodes have numbers of their own.
passes::MaskClass ProgramLowering::classify() const {
  if (!options_.backward) return problem_.mask;
  return passes::classify_mask(program_, {problem_.problem.seq_q, problem_.problem.seq_kv});
}

/// In backward cuDNN runs whole tiles, and what the modifier makes of the scores and operands past the last row and
/// key (inf, NaN, or a value so far above the row's LSE that its exponential overflows) times 0 reaches the gradients
/// of real rows and keys. On 9.19 / sm_90 modifiers of every kind gave NaN at lengths that fill no tile, unless value
/// and adjoint were cut off there.
Value ProgramLowering::cut_tail(Value x, float outside) {
  const std::optional<Value> within = inside();
  return within ? writer_.select(*within, x, GraphWriter::constant(outside)) : x;
}

/// The part of the last tiles that belongs to the problem; empty where the lengths fill their tiles.
std::optional<Value> ProgramLowering::inside() {
  const auto below = [&](Axis axis, std::int64_t length, std::int64_t tile) -> std::optional<Value> {
    if (length % tile == 0) return std::nullopt;
    return writer_.compare(Mode::kCmpLt, writer_.index(axis), GraphWriter::constant(static_cast<std::int32_t>(length)));
  };
  const auto rows = below(Axis::kQuery, problem_.problem.seq_q, kQueryTile);
  const auto keys = below(Axis::kKey, problem_.problem.seq_kv, kKeyTile);
  if (rows && keys) return writer_.logical(Mode::kLogicalAnd, *rows, *keys);
  return rows ? rows : keys;
}

/// Lowers a node and what it needs; iterative, in the order of the program.
Value ProgramLowering::visit(NodeId root) {
  std::vector<NodeId> needed{root};
  std::vector<NodeId> order;
  std::vector<bool> seen(program_.nodes().size(), false);
  while (!needed.empty()) {
    const NodeId id = needed.back();
    needed.pop_back();
    if (seen[id] || values_[id]) continue;
    seen[id] = true;
    order.push_back(id);
    if (computed_[id]) continue;
    for (const NodeId arg : ir::args_of(program_.nodes()[id])) needed.push_back(arg);
  }
  std::sort(order.begin(), order.end());
  for (const NodeId id : order) values_[id] = lower(id);
  return *values_[root];
}

Value ProgramLowering::lower(NodeId id) {
  if (belongs_to_computed(id)) computed_[id] = true;
  if (computed_[id]) return bind_computed(id);
  if (dependence_[id].score) return write(program_.nodes()[id]);
  try {
    return write(program_.nodes()[id]);
  } catch (const NoForm&) {
    computed_[id] = true;
    return bind_computed(id);
  }
}

/// What is made of a computed operand and varies along the same axes is computed with it: a node less, and the tensor
/// is no larger.
bool ProgramLowering::belongs_to_computed(NodeId id) const {
  if (dependence_[id].score) return false;
  return std::ranges::any_of(ir::args_of(program_.nodes()[id]), [&](NodeId arg) {
    return computed_[arg] && dependence_[arg].axes == dependence_[id].axes;
  });
}

Value ProgramLowering::write(const Node& node) {
  const auto arg = [&](std::size_t i) { return *values_[node.args[i]]; };
  switch (ir::info(node.op).signature) {
    case ir::Signature::kLeaf: return leaf(node);
    case ir::Signature::kFloatUnary:
    case ir::Signature::kNumberUnary: return lower_unary(writer_, node.op, arg(0));
    case ir::Signature::kFloatBinary:
    case ir::Signature::kNumberBinary:
    case ir::Signature::kIntBinary: return lower_binary(writer_, node.op, arg(0), arg(1));
    case ir::Signature::kEquality:
    case ir::Signature::kOrdering: return lower_comparison(writer_, node.op, arg(0), arg(1));
    case ir::Signature::kBoolBinary: return lower_boolean(writer_, node.op, arg(0), arg(1));
    case ir::Signature::kBoolUnary: return writer_.logical_not(arg(0));
    case ir::Signature::kSelect: return lower_select(writer_, arg(0), arg(1), arg(2));
    case ir::Signature::kCast: return writer_.cast(arg(0), node.type);
  }
  fail_bug("a signature without lowering");
}

Value ProgramLowering::leaf(const Node& node) {
  switch (node.op) {
    case Op::kScore: return {{Ref::Kind::kScore, 0, 0, 0}, Type::kF32};
    case Op::kUpstream: return {{Ref::Kind::kUpstream, 0, 0, 0}, Type::kF32};
    case Op::kBatchIdx: return index(Axis::kBatch);
    case Op::kHeadIdx: return index(Axis::kHead);
    case Op::kQueryIdx: return index(Axis::kQuery);
    case Op::kKeyIdx: return index(Axis::kKey);
    case Op::kConstant: return constant(node);
    case Op::kOperand: return operand(node.payload);
    default: break;
  }
  throw NoForm{concat("table '", program_.operands()[node.payload].name,
                      "' is read at indices that depend on the score: cuDNN's fused attention has no gather")};
}

Value ProgramLowering::index(Axis axis) {
  const Value local = writer_.index(axis);
  if (!options_.with_offsets) return local;
  const ModifierTensor scalar{{1, 1, 1, 1}, {1, 1, 1, 1}, DType::kI32, true};
  writer_.use("index_offset.by_value");
  return writer_.binary(Mode::kAdd, local, writer_.tensor(scalar, {TensorBinding::Kind::kOffset, 0, axis}, Type::kI32));
}

Value ProgramLowering::operand(std::uint32_t number) {
  const OperandDecl& decl = program_.operands()[number];
  const OperandSpec& spec = problem::spec_of(problem_.problem, number);
  OperandTensor tensor{decl.axes, {}, spec.dtype};
  const auto strides = problem::strides_of(spec);
  std::size_t next = 0;
  for (std::size_t i = 0; i < kAxisCount; ++i) {
    if (decl.axes[i]) tensor.strides[i] = strides[next++];
  }
  std::string names;
  for (const OperandForm& form : operand_forms(tensor, sizes_, options_.backward)) {
    if (writer_.allowed(form.name)) {
      writer_.use(form.name);
      return writer_.tensor(form.tensor, {TensorBinding::Kind::kOperand, number, Axis::kBatch}, decl.type);
    }
    names += concat(names.empty() ? "'" : ", '", form.name, "'");
  }
  throw NoForm{concat("operand '", decl.name, "': no form of ", names,
                      " was seen to be right on this architecture and cuDNN version")};
}

/// Dense along the node's axes; where that has no form, along the smallest set of axes around them that has one.
Value ProgramLowering::bind_computed(NodeId id) {
  const Type type = program_.nodes()[id].type;
  const DType dtype = type == Type::kF32 ? DType::kF32 : DType::kI32;
  std::vector<std::pair<std::int64_t, OperandTensor>> shapes;
  constexpr unsigned kSubsets = 1u << kAxisCount;
  for (unsigned added = 0; added < kSubsets; ++added) {
    std::array<bool, kAxisCount> axes = dependence_[id].axes;
    bool is_new = true;
    std::int64_t elements = 1;
    for (std::size_t i = 0; i < kAxisCount; ++i) {
      const bool adds = (added >> i) & 1u;
      is_new = is_new && !(adds && axes[i]);
      axes[i] = axes[i] || adds;
      if (axes[i]) elements *= sizes_[i];
    }
    if (is_new) shapes.emplace_back(elements, dense_operand(axes, sizes_, dtype));
  }
  std::ranges::stable_sort(shapes, {}, [](const auto& shape) { return shape.first; });
  for (const auto& [elements, tensor] : shapes) {
    for (const OperandForm& form : operand_forms(tensor, sizes_, options_.backward)) {
      if (!writer_.allowed(form.name)) continue;
      writer_.use(form.name);
      const ComputedOperand computed{id, tensor.axes, type};
      const auto number = static_cast<std::uint32_t>(out_.computed.size());
      out_.computed.push_back(computed);
      return writer_.tensor(form.tensor, {TensorBinding::Kind::kComputed, number, Axis::kBatch}, type);
    }
  }
  throw NoForm{concat("no operand of type ", to_string(dtype),
                      " and this shape was seen to be right on this architecture and cuDNN version")};
}

}  // namespace scoremod::backend::cudnn
