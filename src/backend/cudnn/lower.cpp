#include "backend/cudnn/lower.hpp"

#include <algorithm>
#include <limits>
#include <numbers>

#include "backend/cudnn/graph_writer.hpp"
#include "base/fail.hpp"
#include "ir/builder.hpp"
#include "passes/classify_mask.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::cudnn {
namespace {

using passes::Band;

/// The frontend's band node is several nodes of cuDNN's graph: two indices, a shift, a comparison and a select.
constexpr int kNodesOfBand = 5;

/// Lengths that are a multiple of these have no partial tile, whatever kernel cuDNN chooses.
constexpr std::int64_t kQueryTile = 128;
constexpr std::int64_t kKeyTile = 128;

class Lowering {
 public:
  Lowering(const compiler::CompiledProblem& problem, const LoweringOptions& options, LoweredModifier& out)
      : problem_(problem),
        program_(options.backward ? *problem.derivative : problem.program),
        options_(options),
        writer_(options.allowed, out),
        out_(out) {}

  void run() {
    values_.resize(program_.nodes().size());
    done_.assign(program_.nodes().size(), false);
    Value value = writer_.lift(visit(program_.value()));
    if (options_.backward) value = cut_tail(value, -std::numeric_limits<float>::infinity());
    value = mask(value);
    out_.graph.value = value.ref;
    out_.graph.forward_count = static_cast<std::uint32_t>(out_.graph.nodes.size());
    if (options_.backward) adjoint();
  }

 private:
  void adjoint() {
    for (const Root& root : program_.roots()) {
      if (root.kind != RootKind::kScoreAdjoint) continue;
      const Value d_score = visit(root.node);
      // The upstream gradient itself: cuDNN passes it through without a callback.
      if (d_score.ref.kind == Ref::Kind::kUpstream) return;
      out_.graph.d_score = cut_tail(writer_.lift(d_score), 0).ref;
    }
  }

  /// In backward cuDNN runs whole tiles, and what the modifier makes of the scores and operands past the last row and
  /// key (inf, NaN, or a value so far above the row's LSE that its exponential overflows) times 0 reaches the gradients
  /// of real rows and keys. On 9.19 / sm_90 modifiers of every kind gave NaN at lengths that fill no tile, unless value
  /// and adjoint were cut off there.
  Value cut_tail(Value x, float outside) {
    const std::optional<Value> within = inside();
    return within ? writer_.select(*within, x, GraphWriter::constant(outside)) : x;
  }

  /// keep == terms AND band: the terms as a select, then the band last, where cuDNN recognises it and skips tiles.
  Value mask(Value value) {
    const passes::MaskClass mask = classify();
    if (mask.kind == passes::MaskKind::kEmpty) throw NoForm{"every key is masked: nothing to run"};
    const Value outside = GraphWriter::constant(-std::numeric_limits<float>::infinity());
    for (const passes::MaskTerm& term : mask.terms) {
      value = writer_.select(visit(term.node), value, outside);
    }
    if (!mask.band) return value;
    const Band band = passes::top_left(*mask.band, problem_.problem.seq_q, problem_.problem.seq_kv);
    // -left <= kv - q is kv - q > -(left + 1).
    if (band.right) value = writer_.band(value, {false, *band.right});
    if (band.left) value = writer_.band(value, {true, *band.left + 1});
    return value;
  }

  /// The mask of the program that is being lowered: the derivative's nodes have numbers of their own.
  passes::MaskClass classify() const {
    if (!options_.backward) return problem_.mask;
    const AttentionProblem& problem = problem_.problem;
    return passes::classify_mask(program_, {problem.seq_q, problem.seq_kv});
  }

  /// Lowers a node and what it needs; iterative, in the order of the program.
  Value visit(NodeId root) {
    std::vector<NodeId> needed{root};
    std::vector<NodeId> order;
    std::vector<bool> seen(program_.nodes().size(), false);
    while (!needed.empty()) {
      const NodeId id = needed.back();
      needed.pop_back();
      if (seen[id] || done_[id]) continue;
      seen[id] = true;
      order.push_back(id);
      for (const NodeId arg : ir::args_of(program_.nodes()[id])) needed.push_back(arg);
    }
    std::sort(order.begin(), order.end());
    for (const NodeId id : order) {
      values_[id] = node(program_.nodes()[id]);
      done_[id] = true;
    }
    return values_[root];
  }

  Value arg(const Node& node, std::size_t i) const { return values_[node.args[i]]; }

  Value node(const Node& node) {
    switch (ir::info(node.op).signature) {
      case ir::Signature::kLeaf: return leaf(node);
      case ir::Signature::kFloatUnary:
      case ir::Signature::kNumberUnary: return unary(node.op, arg(node, 0));
      case ir::Signature::kFloatBinary:
      case ir::Signature::kNumberBinary:
      case ir::Signature::kIntBinary: return binary(node.op, arg(node, 0), arg(node, 1));
      case ir::Signature::kEquality:
      case ir::Signature::kOrdering: return compare(node.op, arg(node, 0), arg(node, 1));
      case ir::Signature::kBoolBinary: return boolean(node.op, arg(node, 0), arg(node, 1));
      case ir::Signature::kBoolUnary: return writer_.logical_not(arg(node, 0));
      case ir::Signature::kSelect: return select(node);
      case ir::Signature::kCast: return writer_.cast(arg(node, 0), node.type);
    }
    fail_bug("a signature without lowering");
  }

  Value leaf(const Node& node) {
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
    throw NoForm{
        concat("table '", program_.operands()[node.payload].name,
               "' is read at computed indices: cuDNN's fused attention has no gather; bind it as a broadcast operand")};
  }

  static Value constant(const Node& node) {
    switch (node.type) {
      case Type::kF32: return GraphWriter::constant(ir::constant_f32(node));
      case Type::kI32: return GraphWriter::constant(ir::constant_i32(node));
      case Type::kBool: break;
    }
    throw NoForm{"a bool constant has no form; simplify removes it where the passes run"};
  }

  Value index(Axis axis) {
    const Value local = writer_.index(axis);
    if (!options_.with_offsets) return local;
    const ModifierTensor scalar{{1, 1, 1, 1}, {1, 1, 1, 1}, DType::kI32, true};
    writer_.use("operand.by_value.i32");
    return writer_.binary(Mode::kAdd, local,
                          writer_.tensor(scalar, {TensorBinding::Kind::kOffset, 0, axis}, Type::kI32));
  }

  Value operand(std::uint32_t number);
  Value unary(Op op, Value x);
  Value binary(Op op, Value x, Value y);
  Value compare(Op op, Value x, Value y);
  Value boolean(Op op, Value x, Value y);
  Value select(const Node& node);
  Value sign(Value x);
  std::optional<Value> inside();

  const compiler::CompiledProblem& problem_;
  const Program& program_;
  const LoweringOptions& options_;
  GraphWriter writer_;
  LoweredModifier& out_;
  std::vector<Value> values_;
  std::vector<bool> done_;
};

/// Two ways to give cuDNN an operand: with size 1 along the axes that it does not vary along, or with rows of stride 0.
/// cuDNN 9.19 reads B,1,1,1 and B,H,1,1 wrongly (from the second row on), and what varies along kv but not along q
/// wrongly in backward; where the form table says that the plain way is right, it is the faster one.
Value Lowering::operand(std::uint32_t number) {
  const OperandDecl& decl = program_.operands()[number];
  const OperandSpec& spec = problem::spec_of(problem_.problem, number);
  const TensorBinding binding{TensorBinding::Kind::kOperand, number, Axis::kBatch};
  ModifierTensor tensor;
  tensor.dtype = spec.dtype;
  if (decl.rank() == 0) {
    tensor.by_value = true;
    writer_.use(concat("operand.by_value.", to_string(spec.dtype)));
    return writer_.tensor(tensor, binding, decl.type);
  }
  const auto [batch, head, query, key] = decl.axes;
  std::string form = concat("operand.", batch ? 'b' : '1', head ? 'h' : '1', query ? 'q' : '1', key ? 'k' : '1', ".",
                            to_string(spec.dtype));
  const std::string plain_form = form + ".as_declared";
  bool with_rows = !query && (batch || (key && options_.backward));
  if (with_rows && writer_.allowed(plain_form)) {
    with_rows = false;
    form = plain_form;
  }
  writer_.use(form);
  const auto strides = problem::strides_of(spec);
  const std::array<std::int64_t, kAxisCount> sizes{problem_.problem.batch, problem_.problem.heads_q,
                                                   problem_.problem.seq_q, problem_.problem.seq_kv};
  std::size_t next = 0;
  for (std::size_t i = 0; i < kAxisCount; ++i) {
    const bool row_of_stride_0 = with_rows && i == static_cast<std::size_t>(Axis::kQuery);
    tensor.dims[i] = decl.axes[i] || row_of_stride_0 ? sizes[i] : 1;
    tensor.strides[i] = decl.axes[i] ? strides[next++] : row_of_stride_0 ? 0 : 1;
  }
  return writer_.tensor(tensor, binding, decl.type);
}

Value Lowering::unary(Op op, Value x) {
  const auto one = GraphWriter::constant(1.0f);
  switch (op) {
    case Op::kNeg: return writer_.unary(Mode::kNeg, x);
    case Op::kAbs: return writer_.unary(Mode::kAbs, x);
    case Op::kFloor: return writer_.unary(Mode::kFloor, x);
    case Op::kCeil: return writer_.unary(Mode::kCeil, x);
    case Op::kExp: return writer_.unary(Mode::kExp, x);
    case Op::kLog: return writer_.unary(Mode::kLog, x);
    case Op::kSqrt: return writer_.unary(Mode::kSqrt, x);
    case Op::kRsqrt: return writer_.unary(Mode::kRsqrt, x);
    case Op::kReciprocal: return writer_.unary(Mode::kReciprocal, x);
    case Op::kSin: return writer_.unary(Mode::kSin, x);
    case Op::kCos: return writer_.unary(Mode::kCos, x);
    case Op::kTan: return writer_.unary(Mode::kTan, x);
    case Op::kTanh: return writer_.unary(Mode::kTanh, x);
    case Op::kSigmoid: return writer_.unary(Mode::kSigmoid, x);
    case Op::kErf: return writer_.unary(Mode::kErf, x);
    case Op::kSoftplus: return writer_.unary(Mode::kSoftplus, x);
    case Op::kRelu: return writer_.unary(Mode::kRelu, x);
    case Op::kGelu: return writer_.unary(Mode::kGelu, x);
    case Op::kGeluTanh: return writer_.unary(Mode::kGeluTanh, x);
    case Op::kSilu: return writer_.unary(Mode::kSwish, x);
    // Composed, because cuDNN has no such mode.
    case Op::kExp2:
      return writer_.unary(Mode::kExp,
                           writer_.binary(Mode::kMul, x, GraphWriter::constant(std::numbers::ln2_v<float>)));
    case Op::kSign: return sign(x);
    case Op::kExpm1: return writer_.binary(Mode::kSub, writer_.unary(Mode::kExp, x), one);
    case Op::kLog1p: return writer_.unary(Mode::kLog, writer_.binary(Mode::kAdd, x, one));
    default: break;
  }
  throw NoForm{concat("'", ir::info(op).name, "': cuDNN has no mode for it and no composition is exact enough")};
}

Value Lowering::binary(Op op, Value x, Value y) {
  switch (op) {
    case Op::kAdd: return writer_.binary(Mode::kAdd, x, y);
    case Op::kSub: return writer_.binary(Mode::kSub, x, y);
    case Op::kMul: return writer_.binary(Mode::kMul, x, y);
    case Op::kDiv: return writer_.binary(Mode::kDiv, x, y);
    case Op::kPow: return writer_.binary(Mode::kPow, x, y);
    case Op::kMin: return writer_.binary(Mode::kMin, x, y);
    case Op::kMax: return writer_.binary(Mode::kMax, x, y);
    default: break;
  }
  throw NoForm{concat("'", ir::info(op).name,
                      "': cuDNN's integer division and modulo truncate and cost up to 18 times; precompute the "
                      "expression as an operand along its axis")};
}

Value Lowering::compare(Op op, Value x, Value y) {
  // Bools compare as the logic that they are: equality is not-xor.
  if (x.type == Type::kBool) {
    const Value differs = writer_.logical(Mode::kCmpNeq, x, y);
    return op == Op::kNe ? differs : writer_.logical_not(differs);
  }
  switch (op) {
    case Op::kEq: return writer_.compare(Mode::kCmpEq, x, y);
    case Op::kNe: return writer_.compare(Mode::kCmpNeq, x, y);
    case Op::kLt: return writer_.compare(Mode::kCmpLt, x, y);
    case Op::kLe: return writer_.compare(Mode::kCmpLe, x, y);
    case Op::kGt: return writer_.compare(Mode::kCmpGt, x, y);
    case Op::kGe: return writer_.compare(Mode::kCmpGe, x, y);
    default: fail_bug("'", ir::info(op).name, "' is no comparison");
  }
}

Value Lowering::boolean(Op op, Value x, Value y) {
  const Mode mode = op == Op::kAnd ? Mode::kLogicalAnd : op == Op::kOr ? Mode::kLogicalOr : Mode::kCmpNeq;
  return writer_.logical(mode, x, y);
}

Value Lowering::select(const Node& node) {
  const Value c = arg(node, 0), x = arg(node, 1), y = arg(node, 2);
  if (node.type != Type::kBool) return writer_.select(c, x, y);
  return writer_.logical(Mode::kLogicalOr, writer_.logical(Mode::kLogicalAnd, c, x),
                         writer_.logical(Mode::kLogicalAnd, writer_.logical_not(c), y));
}

/// (x > 0) - (x < 0): cuDNN has no sign.
Value Lowering::sign(Value x) {
  const Value zero = x.type == Type::kF32 ? GraphWriter::constant(0.0f) : GraphWriter::constant(std::int32_t{0});
  const Value above = writer_.cast(writer_.compare(Mode::kCmpGt, x, zero), x.type);
  const Value below = writer_.cast(writer_.compare(Mode::kCmpLt, x, zero), x.type);
  return writer_.binary(Mode::kSub, above, below);
}

/// The part of the last tiles that belongs to the problem; empty where the lengths fill their tiles.
std::optional<Value> Lowering::inside() {
  const auto below = [&](Axis axis, std::int64_t length, std::int64_t tile) -> std::optional<Value> {
    if (length % tile == 0) return std::nullopt;
    return writer_.compare(Mode::kCmpLt, writer_.index(axis), GraphWriter::constant(static_cast<std::int32_t>(length)));
  };
  const auto rows = below(Axis::kQuery, problem_.problem.seq_q, kQueryTile);
  const auto keys = below(Axis::kKey, problem_.problem.seq_kv, kKeyTile);
  if (rows && keys) return writer_.logical(Mode::kLogicalAnd, *rows, *keys);
  return rows ? rows : keys;
}

int node_count(const ModifierGraph& graph) {
  int count = 0;
  for (const ModifierNode& node : graph.nodes) count += node.mode == Mode::kBand ? kNodesOfBand : 1;
  return count;
}

}  // namespace

LoweringResult lower(const compiler::CompiledProblem& problem, const LoweringOptions& options) {
  if (options.backward && !problem.derivative) fail_bug("a backward lowering of a problem without derivative");
  LoweringResult result;
  LoweredModifier lowered;
  try {
    Lowering(problem, options, lowered).run();
  } catch (const NoForm& none) {
    result.reasons.push_back(none.reason);
    return result;
  }
  const int count = node_count(lowered.graph);
  const int budget = options.backward ? kBackwardNodeBudget : kForwardNodeBudget;
  if (count > budget) {
    result.reasons.push_back(concat("the program needs ", count, " cuDNN nodes; cuDNN 9.19 crashes above ", budget,
                                    options.backward ? " in backward" : " in forward",
                                    "; simplify it or bind score-free parts as operands"));
    return result;
  }
  result.lowered = std::move(lowered);
  return result;
}

}  // namespace scoremod::backend::cudnn
