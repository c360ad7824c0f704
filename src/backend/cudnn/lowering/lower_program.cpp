#include "backend/cudnn/lowering/lower_program.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cudnn/lowering/lower_op.hpp"
#include "base/fail.hpp"
#include "ir/builder.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::cudnn {
namespace {

/// Lengths that are a multiple of these have no partial tile, whatever kernel cuDNN chooses.
constexpr std::int64_t kQueryTile = 128;
constexpr std::int64_t kKeyTile = 128;

constexpr const char* kBandWithOffsets = "band.with_offsets";

std::string offset_pattern(Axis axis) { return concat("index_offset.", static_cast<int>(axis)); }

constexpr float kMasked = -std::numeric_limits<float>::infinity();

Value constant(const Node& node) {
  switch (node.type) {
    case Type::kF32: return GraphWriter::constant(ir::constant_f32(node));
    case Type::kI32: return GraphWriter::constant(ir::constant_i32(node));
    case Type::kBool: break;
  }
  throw NoPattern{"a bool constant has no pattern; simplify removes it where the passes run"};
}

/// The range of each node, for all operands and scores.
std::vector<analysis::ValueRange> ranges_of(const Program& program) {
  std::vector<analysis::ValueRange> ranges;
  std::vector<analysis::ValueRange> args;
  for (const Node& node : program.nodes()) {
    const bool is_index = node.op >= Op::kBatchIdx && node.op <= Op::kKeyIdx;
    if (is_index) {
      ranges.push_back({0, static_cast<double>(masks::kIndexLimit - 1), false});
    } else if (node.op == Op::kConstant) {
      ranges.push_back(analysis::constant_range(node));
    } else if (ir::info(node.op).signature == ir::Signature::kLeaf) {
      ranges.push_back(analysis::everything(node.type));
    } else {
      args.clear();
      for (const NodeId arg : ir::args_of(node)) args.push_back(ranges[arg]);
      ranges.push_back(analysis::range_of_op(node, program.nodes()[node.args[0]].type, args));
    }
  }
  return ranges;
}

/// The nodes that products read and nothing else does.
std::vector<bool> factors_of(const Program& program) {
  std::vector<bool> is_factor(program.nodes().size(), true);
  for (const Node& node : program.nodes()) {
    if (node.op == Op::kMul) continue;
    for (const NodeId arg : ir::args_of(node)) is_factor[arg] = false;
  }
  for (const Root& root : program.roots()) is_factor[root.node] = false;
  return is_factor;
}

}  // namespace

const Program& program_of(const compiler::CompiledProblem& problem, const LoweringOptions& options) {
  return options.backward ? problem.backward->program : problem.forward.program;
}

std::string row_vector_pattern(int uses) { return concat("row_vector_uses.", uses); }

ProgramLowering::ProgramLowering(const compiler::CompiledProblem& problem, const LoweringOptions& options,
                                 const std::vector<analysis::Dependence>& dependence, RowVectors row_vectors,
                                 std::vector<bool>& computed, LoweredModifier& out)
    : problem_(problem),
      program_(program_of(problem, options)),
      options_(options),
      dependence_(dependence),
      row_vectors_(row_vectors),
      computed_(computed),
      sizes_{problem.problem.batch, problem.problem.heads_q, problem.problem.seq_q, problem.problem.seq_kv},
      out_(out),
      writer_(options.allowed, out),
      ranges_(ranges_of(program_)),
      is_factor_(factors_of(program_)),
      values_(program_.nodes().size()) {}

void ProgramLowering::run() {
  Value value = writer_.lift(visit(program_.value()));
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
    out_.graph.d_score =
        dependence_[root.node].score ? cut_sequences(cut_tail(writer_.lift(d_score), 0)).ref : no_gradient().ref;
  }
}

/// An adjoint that does not depend on the upstream gradient is zero, and cuDNN refuses one that does not read it
/// (9.19).
Value ProgramLowering::no_gradient() {
  const Value upstream{{Ref::Kind::kUpstream, 0, 0, 0}, Type::kF32};
  return cut_tail(writer_.binary(Mode::kMul, upstream, GraphWriter::constant(0.0f)), 0);
}

/// keep == terms AND band: the terms as a select, then the band last, where cuDNN recognises it and skips tiles.
Value ProgramLowering::mask(Value value) {
  const masks::MaskClass& mask = options_.backward ? problem_.backward->mask : problem_.forward.mask;
  if (mask.kind == masks::MaskKind::kEmpty) {
    const Value never = writer_.compare(Mode::kCmpLt, writer_.zero(Type::kI32), GraphWriter::constant(std::int32_t{0}));
    return keep_where(never, value);
  }
  std::optional<masks::Band> band;
  if (mask.band) band = masks::top_left(*mask.band, problem_.problem.seq_q, problem_.problem.seq_kv);
  if (band && !has_pattern(*band)) return keep_where(visit(program_.keep()), value);
  for (const masks::MaskTerm& term : mask.terms) value = keep_where(visit(term.node), value);
  return band ? keep_in(*band, value) : value;
}

Value ProgramLowering::keep_where(Value condition, Value value) {
  return writer_.select(condition, value, GraphWriter::constant(kMasked));
}

bool ProgramLowering::has_pattern(const masks::Band& band) const {
  if (options_.with_offsets) {
    return writer_.allowed(kBandWithOffsets) && writer_.allowed(offset_pattern(Axis::kQuery)) &&
           writer_.allowed(offset_pattern(Axis::kKey));
  }
  return (!band.right || writer_.allowed(GraphWriter::band_pattern({false, *band.right}))) &&
         (!band.left || writer_.allowed(GraphWriter::band_pattern({true, *band.left + 1})));
}

/// The band nodes count local indices. With offsets, which differ from call to call, global ones are compared.
Value ProgramLowering::keep_in(const masks::Band& band, Value value) {
  if (!options_.with_offsets) {
    // -left <= kv - q is kv - q > -(left + 1).
    if (band.right) value = writer_.band(value, {false, *band.right});
    if (band.left) value = writer_.band(value, {true, *band.left + 1});
    return value;
  }
  writer_.use(kBandWithOffsets);
  const Value key = index(Axis::kKey);
  const Value query = index(Axis::kQuery);
  const Value distance = writer_.binary(Mode::kSub, key, query);
  const auto end = [&](Mode mode, std::int64_t bound) {
    return writer_.compare(mode, distance, GraphWriter::constant(static_cast<std::int32_t>(bound)));
  };
  if (band.right) value = keep_where(end(Mode::kCmpLe, *band.right), value);
  if (band.left) value = keep_where(end(Mode::kCmpGe, -*band.left), value);
  return value;
}

/// In backward cuDNN runs whole tiles. Past the last row and key the modifier may make inf, NaN, or a value so far
/// above the row's LSE that its exponential overflows. Times 0 this reaches the gradients of real rows and keys. On
/// 9.19 / sm_90 modifiers of every kind gave NaN at lengths that fill no tile, unless value and adjoint were cut off
/// there.
Value ProgramLowering::cut_tail(Value x, float outside) {
  const std::optional<Value> within = inside();
  return within ? writer_.select(*within, x, GraphWriter::constant(outside)) : x;
}

/// A varlen sequence's last tile has rows or keys of the next sequence, and a modifier makes of their scores what it
/// likes. The mask's lengths have cut the value there already.
Value ProgramLowering::cut_sequences(Value d_score) {
  const AttentionProblem& problem = problem_.problem;
  for (const masks::MaskTerm& term : problem_.backward->mask.terms) {
    const bool of_keys = term.axis == Axis::kKey;
    const bool is_length = term.kind == masks::MaskKind::kPadding && !term.from_start;
    if (!is_length || !(of_keys ? problem.tokens_kv : problem.tokens_q)) continue;
    d_score = writer_.select(visit(term.node), d_score, GraphWriter::constant(0.0f));
  }
  return d_score;
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

/// Lowers a node and its arguments; iterative, in the order of the program.
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
    if (!computed_[id]) push_needs(id, needed);
  }
  std::sort(order.begin(), order.end());
  for (const NodeId id : order) values_[id] = lower(id);
  return *values_[root];
}

void ProgramLowering::push_needs(NodeId id, std::vector<NodeId>& needed) const {
  const Node& node = program_.nodes()[id];
  if (const auto bound = merged(node)) {
    needed.insert(needed.end(), {bound->x, bound->bound});
    return;
  }
  for (const NodeId arg : ir::args_of(node)) needed.push_back(arg);
}

Value ProgramLowering::lower(NodeId id) {
  if (belongs_to_computed(id)) computed_[id] = true;
  if (computed_[id]) return bind_computed(id);
  if (dependence_[id].score) return write(id);
  try {
    return write(id);
  } catch (const NoPattern&) {
    computed_[id] = true;
    return bind_computed(id);
  }
}

/// A node made from a computed operand along the same axes is computed with it: a node less, and the tensor is no
/// larger.
bool ProgramLowering::belongs_to_computed(NodeId id) const {
  if (dependence_[id].score) return false;
  return std::ranges::any_of(ir::args_of(program_.nodes()[id]), [&](NodeId arg) {
    return computed_[arg] && dependence_[arg].axes == dependence_[id].axes;
  });
}

Value ProgramLowering::write(NodeId id) {
  const Node& node = program_.nodes()[id];
  const auto arg = [&](std::size_t i) { return *values_[node.args[i]]; };
  switch (ir::info(node.op).signature) {
    case ir::Signature::kLeaf: return leaf(node);
    case ir::Signature::kFloatUnary:
    case ir::Signature::kNumberUnary: return lower_unary(writer_, node.op, arg(0));
    case ir::Signature::kFloatBinary:
    case ir::Signature::kNumberBinary:
    case ir::Signature::kIntBinary:
      if (const auto factor = factor_for_division(node)) return lower_binary(writer_, Op::kMul, arg(0), *factor);
      return lower_binary(writer_, node.op, arg(0), arg(1));
    case ir::Signature::kEquality:
    case ir::Signature::kOrdering: return lower_comparison(writer_, node.op, arg(0), arg(1), difference_may_wrap(node));
    case ir::Signature::kBoolBinary: return logic(node);
    case ir::Signature::kBoolUnary: return writer_.logical_not(arg(0));
    case ir::Signature::kSelect: return lower_select(writer_, arg(0), arg(1), arg(2));
    case ir::Signature::kCast: return cast(id);
  }
  fail_bug("a signature without lowering");
}

Value ProgramLowering::logic(const Node& node) {
  if (const auto bound = merged(node)) {
    const Value constant = GraphWriter::constant(bound->constant);
    return writer_.at_most(*values_[bound->x], writer_.binary(Mode::kMax, *values_[bound->bound], constant));
  }
  return lower_boolean(writer_, node.op, *values_[node.args[0]], *values_[node.args[1]]);
}

std::optional<MergedBound> ProgramLowering::merged(const Node& node) const {
  return writer_.allowed(kAtMostPattern) ? merged_bound(program_, node) : std::nullopt;
}

/// A product computes in f32 and takes an i32 as it is: without the cast, ALiBi takes 5 % less in forward (H200, cuDNN
/// 9.19).
Value ProgramLowering::cast(NodeId id) {
  const Node& node = program_.nodes()[id];
  const Value x = *values_[node.args[0]];
  const bool as_it_is =
      x.type == Type::kI32 && x.computed() && is_factor_[id] && writer_.allowed(kIntegerFactorPattern);
  if (!as_it_is) return writer_.cast(x, node.type);
  writer_.use(kIntegerFactorPattern);
  return {x.ref, node.type};
}

/// Whether x - y of a comparison's arguments may leave i32.
bool ProgramLowering::difference_may_wrap(const Node& node) const {
  const analysis::ValueRange &x = ranges_[node.args[0]], &y = ranges_[node.args[1]];
  using Limits = std::numeric_limits<std::int32_t>;
  return x.lo - y.hi < Limits::min() || x.hi - y.lo > Limits::max();
}

/// 1 / c if the node is a score divided by a constant. A GPU divides in several instructions, and a score is no more
/// exact than the product. A quotient that does not depend on the score, such as of index arithmetic, may have to be
/// exact.
std::optional<Value> ProgramLowering::factor_for_division(const Node& node) const {
  if (node.op != Op::kDiv || !dependence_[node.args[0]].score) return std::nullopt;
  const Node& divisor = program_.nodes()[node.args[1]];
  if (divisor.op != Op::kConstant) return std::nullopt;
  const float factor = 1 / ir::constant_f32(divisor);
  return std::isnormal(factor) ? std::optional(GraphWriter::constant(factor)) : std::nullopt;
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
  throw NoPattern{concat("table '", program_.operands()[node.payload].name,
                         "' is read at indices that depend on the score: cuDNN's fused attention has no gather")};
}

/// In backward cuDNN 9.19 computed something else from batch and head indices with offsets; those of rows and keys were
/// right.
Value ProgramLowering::index(Axis axis) {
  if (!options_.with_offsets) return writer_.index(axis);
  if (axis == Axis::kBatch || axis == Axis::kHead)
    throw NoPattern{"a batch or head index with an offset has no pattern"};
  writer_.use(offset_pattern(axis));
  const ModifierTensor scalar{{1, 1, 1, 1}, {1, 1, 1, 1}, DType::kI32, true};
  const Value offset = writer_.tensor(scalar, {TensorBinding::Kind::kOffset, 0, axis}, Type::kI32);
  return writer_.binary(Mode::kAdd, writer_.index(axis), offset);
}

}  // namespace scoremod::backend::cudnn
