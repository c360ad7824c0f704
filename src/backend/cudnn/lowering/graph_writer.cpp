#include "backend/cudnn/lowering/graph_writer.hpp"

#include <algorithm>

#include "base/fail.hpp"

namespace scoremod::backend::cudnn {
namespace {

ElementType element_type(Type type) {
  return type == Type::kF32 ? ElementType::kFloat : type == Type::kI32 ? ElementType::kInt32 : ElementType::kBoolean;
}

bool commutative(Mode mode) {
  switch (mode) {
    case Mode::kAdd:
    case Mode::kMul:
    case Mode::kMin:
    case Mode::kMax: return true;
    default: return false;
  }
}

/// The comparison that says the same with its sides exchanged.
Mode flipped(Mode mode) {
  switch (mode) {
    case Mode::kCmpLt: return Mode::kCmpGt;
    case Mode::kCmpLe: return Mode::kCmpGe;
    case Mode::kCmpGt: return Mode::kCmpLt;
    case Mode::kCmpGe: return Mode::kCmpLe;
    default: return mode;
  }
}

bool is_ordering(Mode mode) { return mode >= Mode::kCmpLt && mode <= Mode::kCmpGe; }

ModifierNode index_node(Axis axis) {
  ModifierNode node;
  node.mode = Mode::kGenIndex;
  node.compute = ElementType::kInt32;
  node.output = ElementType::kInt32;
  node.axis = static_cast<int>(axis);
  return node;
}

ModifierNode pointwise_node(Mode mode, Type compute, Type output, std::initializer_list<Value> inputs) {
  ModifierNode node;
  node.mode = mode;
  node.compute = element_type(compute);
  node.output = element_type(output);
  std::size_t count = 0;
  for (const Value& input : inputs) node.inputs[count++] = input.ref;
  return node;
}

}  // namespace

void GraphWriter::use(const std::string& pattern) {
  if (!allowed_(pattern))
    throw NoPattern{concat("pattern '", pattern, "' was not seen to be right on this architecture and cuDNN version")};
  out_.patterns.insert(pattern);
}

Value GraphWriter::add(const ModifierNode& node, Type type, const std::string& pattern) {
  use(pattern);
  return add(node, type);
}

Value GraphWriter::add(const ModifierNode& node, Type type) {
  const auto begin = out_.graph.nodes.begin();
  const auto found = std::find(begin, out_.graph.nodes.end(), node);
  const auto index = static_cast<std::uint32_t>(found - begin);
  if (found == out_.graph.nodes.end()) {
    // Far above any budget, and few enough to be searched.
    constexpr std::size_t kMaxNodes = 1024;
    if (out_.graph.nodes.size() == kMaxNodes)
      throw NoPattern{concat("the program needs more than ", kMaxNodes, " nodes")};
    out_.graph.nodes.push_back(node);
    reads_score_.push_back(reads_score(node, reads_score_));
  }
  return {{Ref::Kind::kNode, index, 0, 0}, type};
}

Value GraphWriter::pointwise(Mode mode, Type compute, Type output, std::initializer_list<Value> inputs) {
  return add(pointwise_node(mode, compute, output, inputs), output,
             concat(to_string(mode), ".", scoremod::to_string(compute)));
}

Value GraphWriter::index(Axis axis) {
  return add(index_node(axis), Type::kI32, concat("gen_index.", static_cast<int>(axis)));
}

Value GraphWriter::tensor(const ModifierTensor& tensor, const TensorBinding& binding, Type type) {
  for (std::size_t i = 0; i < out_.bindings.size(); ++i) {
    if (out_.bindings[i] == binding) return {{Ref::Kind::kTensor, static_cast<std::uint32_t>(i), 0, 0}, type};
  }
  out_.graph.tensors.push_back(tensor);
  out_.bindings.push_back(binding);
  return {{Ref::Kind::kTensor, static_cast<std::uint32_t>(out_.bindings.size() - 1), 0, 0}, type};
}

/// An index times 0: indices are finite. cuDNN counts them wrongly in some kernels, which does not matter here, so that
/// this is a pattern of its own.
Value GraphWriter::zero(Type type) {
  const Value index = add(index_node(Axis::kQuery), Type::kI32);
  const Value factor = type == Type::kF32 ? constant(0.0f) : constant(std::int32_t{0});
  return add(pointwise_node(Mode::kMul, type, type, {index, factor}), type);
}

Value GraphWriter::lift(Value x) {
  if (x.computed()) return x;
  use(concat("lift.", scoremod::to_string(x.type)));
  // A bool lies in memory as i32.
  if (x.type == Type::kBool) {
    return add(pointwise_node(Mode::kCmpNeq, Type::kI32, Type::kBool, {zero(Type::kI32), x}), Type::kBool);
  }
  return add(pointwise_node(Mode::kAdd, x.type, x.type, {zero(x.type), x}), x.type);
}

Value GraphWriter::unary(Mode mode, Value x) { return pointwise(mode, x.type, x.type, {lift(x)}); }

/// cuDNN wants a computed value first. In sums and differences of two computed values, the one that depends on the
/// score must come first. In backward 9.19 computes something else from `indices + score` and `indices - score`. Other
/// modes were right either way (`index_first.*` in the table), and a division is twice as fast as written.
Value GraphWriter::binary(Mode mode, Value x, Value y) {
  const bool is_sum = mode == Mode::kAdd || mode == Mode::kSub;
  const auto of_score = [&](const Value& value) { return reads_score(value.ref, reads_score_); };
  const bool y_first = y.computed() && (!x.computed() || (is_sum && of_score(y) && !of_score(x)));
  if (!y_first) return pointwise(mode, x.type, x.type, {lift(x), y});
  if (commutative(mode)) return pointwise(mode, x.type, x.type, {y, x});
  if (mode == Mode::kSub) return pointwise(Mode::kAdd, x.type, x.type, {unary(Mode::kNeg, y), x});
  if (mode == Mode::kDiv) return pointwise(Mode::kMul, x.type, x.type, {unary(Mode::kReciprocal, y), x});
  return pointwise(mode, x.type, x.type, {lift(x), y});
}

/// As it stands: only comparisons of the indices themselves are taken for a causal mask (see needs_difference).
Value GraphWriter::at_most(Value x, Value bound) {
  return add(pointwise_node(Mode::kCmpGe, Type::kI32, Type::kBool, {bound, x}), Type::kBool, kAtMostPattern);
}

bool GraphWriter::is_query_index(const Value& x) const {
  if (x.ref.kind != Ref::Kind::kNode) return false;
  const ModifierNode& node = out_.graph.nodes[x.ref.index];
  return node.mode == Mode::kGenIndex && node.axis == static_cast<int>(Axis::kQuery);
}

/// cuDNN takes `q > kv` and similar patterns for a causal mask whatever its operands and mode (9.19: six such patterns
/// computed something else). It crashes if the query index is compared to an operand. It reads a comparison of a
/// difference with a constant as written.
bool GraphWriter::needs_difference(const Value& x, const Value& y) const {
  if (x.type != Type::kI32 || !x.computed()) return false;
  return y.computed() || (is_query_index(x) && y.ref.kind == Ref::Kind::kTensor);
}

Value GraphWriter::compare(Mode mode, Value x, Value y, bool may_wrap) {
  if (!x.computed() && y.computed()) return compare(flipped(mode), y, x, may_wrap);
  if (!needs_difference(x, y)) return pointwise(mode, x.type, Type::kBool, {lift(x), y});
  const Value zero = constant(std::int32_t{0});
  if (!may_wrap || !is_ordering(mode)) return pointwise(mode, x.type, Type::kBool, {binary(Mode::kSub, x, y), zero});
  // x >= y where max(x, y) is x; that a difference is zero holds when it wraps, too.
  const bool at_least = mode == Mode::kCmpGe || mode == Mode::kCmpLt;
  const bool or_equal = mode == Mode::kCmpGe || mode == Mode::kCmpLe;
  const Value bound = binary(at_least ? Mode::kMax : Mode::kMin, x, y);
  return pointwise(or_equal ? Mode::kCmpEq : Mode::kCmpNeq, x.type, Type::kBool, {binary(Mode::kSub, bound, x), zero});
}

// cuDNN refuses boolean nodes with compute type BOOLEAN, and computes a wrong product with INT32.
Value GraphWriter::logical(Mode mode, Value x, Value y) {
  return pointwise(mode, Type::kF32, Type::kBool, {lift(x), lift(y)});
}

Value GraphWriter::logical_not(Value x) { return pointwise(Mode::kLogicalNot, Type::kF32, Type::kBool, {lift(x)}); }

Value GraphWriter::select(Value condition, Value x, Value y) {
  if (!x.computed() && y.computed()) return select(logical_not(condition), y, x);
  // A tensor as a direct input passes cuDNN's check and fails when the plan is built.
  const Value second = y.ref.kind == Ref::Kind::kTensor ? lift(y) : y;
  return pointwise(Mode::kBinarySelect, x.type, x.type, {lift(x), second, lift(condition)});
}

/// cuDNN 9.19 rounds a cast from f32 to i32, where the program language truncates.
Value GraphWriter::truncated(Value x) {
  const Value negative = compare(Mode::kCmpLt, x, constant(0.0f));
  const Value above = unary(Mode::kCeil, x);
  const Value below = unary(Mode::kFloor, x);
  return select(negative, above, below);
}

Value GraphWriter::cast(Value x, Type to) {
  if (x.type == to) return x;
  if (to == Type::kBool) {
    return compare(Mode::kCmpNeq, lift(x), x.type == Type::kF32 ? constant(0.0f) : constant(std::int32_t{0}));
  }
  const bool to_integer = x.type == Type::kF32 && to == Type::kI32;
  if (to_integer) x = truncated(x);
  ModifierNode node;
  node.mode = Mode::kIdentity;
  node.compute = ElementType::kFloat;
  node.output = element_type(to);
  node.inputs[0] = lift(x).ref;
  return add(node, to,
             concat("identity.", scoremod::to_string(x.type), "_to_", scoremod::to_string(to),
                    to_integer ? ".of_integer" : ""));
}

Value GraphWriter::band(Value x, const BandEnd& end) {
  ModifierNode node;
  node.mode = Mode::kBand;
  node.inputs[0] = lift(x).ref;
  node.band = end;
  return add(node, Type::kF32, band_pattern(end));
}

const char* GraphWriter::band_pattern(const BandEnd& end) {
  if (end.left) return "band.left";
  return end.bound == 0 ? "band.right" : "band.right.shifted";
}

}  // namespace scoremod::backend::cudnn
