#include "passes/rewriter.hpp"

#include <bit>

#include "ir/op_table.hpp"
#include "ir/scalar_eval.hpp"

namespace scoremod::passes {
namespace {

constexpr std::size_t kTypeCount = 3;
using RuleIndex = std::array<std::array<std::vector<const Rule*>, kTypeCount>, kOpCount>;

const RuleIndex& rule_index() {
  static const RuleIndex index = [] {
    RuleIndex made;
    for (const Rule& rule : rewrite_rules()) {
      made[static_cast<std::size_t>(rule.op)][static_cast<std::size_t>(rule.argument)].push_back(&rule);
    }
    return made;
  }();
  return index;
}

}  // namespace

const std::vector<Rule>& rewrite_rules() {
  static const std::vector<Rule> all = [] {
    std::vector<Rule> made;
    for (const auto family :
         {order_rules(), f32_rules(), i32_rules(), bool_rules(), comparison_rules(), select_rules(), cast_rules()}) {
      made.insert(made.end(), family.begin(), family.end());
    }
    return made;
  }();
  return all;
}

Rewriter::Rewriter(std::span<const OperandDecl> operands, const RuleObserver& observer) : observer_(observer) {
  for (const OperandDecl& decl : operands) builder_.declare(decl);
}

NodeId Rewriter::make(Op op, std::span<const NodeId> args) {
  Node node;
  node.op = op;
  node.arg_count = static_cast<std::uint8_t>(args.size());
  std::array<Type, kMaxArgs> types{};
  for (std::size_t i = 0; i < args.size(); ++i) {
    node.args[i] = args[i];
    types[i] = type(args[i]);
  }
  std::string why;
  // Arguments that do not fit are refused by the builder below.
  node.type = ir::infer_type(op, std::span(types).first(args.size()), &why).value_or(Type::kF32);
  if (const NodeId folded = fold(node); folded != kNoNode) return folded;
  if (const NodeId simpler = apply_rules(node); simpler != kNoNode) return simpler;
  return builder_.make(op, args);
}

NodeId Rewriter::remake(const Node& node, std::span<const NodeId> args) {
  if (ir::info(node.op).signature == ir::Signature::kLeaf) return builder_.remake(node, args);
  return make(node.op, args);
}

NodeId Rewriter::fold(const Node& node) {
  std::array<ir::Scalar<float>, kMaxArgs> values;
  for (std::size_t i = 0; i < node.arg_count; ++i) {
    if (!is_constant(node.args[i])) return kNoNode;
    values[i] = ir::constant_value<float>(builder_.node(node.args[i]));
  }
  const std::span<const ir::Scalar<float>> args(values.data(), node.arg_count);
  const ir::Scalar<float> result = ir::eval_op(node, type(node.args[0]), args);
  switch (node.type) {
    case Type::kF32: return constant(result.f);
    case Type::kI32: return constant(result.i);
    case Type::kBool: return constant(result.b);
  }
  return kNoNode;
}

NodeId Rewriter::apply_rules(const Node& node) {
  const auto argument = static_cast<std::size_t>(type(node.args[0]));
  for (const Rule* rule : rule_index()[static_cast<std::size_t>(node.op)][argument]) {
    const NodeId simpler = rule->apply(*this, node);
    if (simpler == kNoNode) continue;
    if (observer_) observer_(*rule);
    return simpler;
  }
  return kNoNode;
}

std::optional<float> Rewriter::f32(NodeId id) const {
  const Node& found = builder_.node(id);
  if (found.op != Op::kConstant || found.type != Type::kF32) return std::nullopt;
  return ir::constant_f32(found);
}

std::optional<std::int32_t> Rewriter::i32(NodeId id) const {
  const Node& found = builder_.node(id);
  if (found.op != Op::kConstant || found.type != Type::kI32) return std::nullopt;
  return ir::constant_i32(found);
}

std::optional<bool> Rewriter::boolean(NodeId id) const {
  const Node& found = builder_.node(id);
  if (found.op != Op::kConstant || found.type != Type::kBool) return std::nullopt;
  return ir::constant_bool(found);
}

bool Rewriter::is_f32(NodeId id, float value) const {
  const auto found = f32(id);
  return found && std::bit_cast<std::uint32_t>(*found) == std::bit_cast<std::uint32_t>(value);
}

}  // namespace scoremod::passes
