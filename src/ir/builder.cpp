#include "ir/builder.hpp"

#include <bit>
#include <cmath>
#include <limits>

#include "base/fail.hpp"
#include "ir/canonical.hpp"
#include "ir/lexer.hpp"

namespace scoremod::ir {
namespace {

bool is_float_leaf(Op op) { return op == Op::kScore || op == Op::kUpstream || op == Op::kScale; }

Type leaf_type(Op op) { return is_float_leaf(op) ? Type::kF32 : Type::kI32; }

bool is_plain_leaf(Op op) {
  return is_float_leaf(op) || op == Op::kBatchIdx || op == Op::kHeadIdx || op == Op::kQueryIdx || op == Op::kKeyIdx;
}

Node constant_node(Type type, std::uint32_t bits) {
  Node node;
  node.op = Op::kConstant;
  node.type = type;
  node.payload = bits;
  return node;
}

}  // namespace

std::size_t Builder::NodeHash::operator()(const Node& node) const { return static_cast<std::size_t>(hash_of(node)); }

std::uint32_t Builder::declare(const OperandDecl& decl) {
  if (!is_identifier(decl.name)) {
    fail_argument("operand name: expected letters, digits and '_' with no digit first, found '", decl.name,
                  "'; rename it");
  }
  if (decl.name.size() > kMaxNameBytes) {
    fail_argument("operand name: expected at most ", kMaxNameBytes, " characters, found ", decl.name.size(),
                  "; shorten it");
  }
  if (is_reserved(decl.name))
    fail_argument("operand name '", decl.name, "' is a word of the program language; rename it");
  for (const OperandDecl& other : operands_) {
    if (other.name == decl.name)
      fail_argument("operand '", decl.name, "' is declared twice; give each operand its own name");
  }
  if (decl.table_rank < 0 || decl.table_rank > kMaxTableRank) {
    fail_argument("table '", decl.name, "': expected a rank of 1 to ", kMaxTableRank, ", found ", decl.table_rank);
  }
  if (operands_.size() >= kMaxOperands)
    fail_unsupported("the program has more than ", kMaxOperands, " operands; use fewer");
  operands_.push_back(decl);
  return static_cast<std::uint32_t>(operands_.size() - 1);
}

NodeId Builder::leaf(Op op) {
  if (!is_plain_leaf(op)) fail_bug("'", info(op).name, "' is no leaf without a payload");
  Node node;
  node.op = op;
  node.type = leaf_type(op);
  return intern(node);
}

NodeId Builder::constant(float value) {
  // One NaN, so that equal programs have equal bits.
  const float canonical = std::isnan(value) ? std::numeric_limits<float>::quiet_NaN() : value;
  return intern(constant_node(Type::kF32, std::bit_cast<std::uint32_t>(canonical)));
}

NodeId Builder::constant(std::int32_t value) {
  return intern(constant_node(Type::kI32, static_cast<std::uint32_t>(value)));
}

NodeId Builder::constant(bool value) { return intern(constant_node(Type::kBool, value ? 1u : 0u)); }

NodeId Builder::operand(std::uint32_t number) {
  if (number >= operands_.size()) fail_bug("operand ", number, " is not declared");
  const OperandDecl& decl = operands_[number];
  if (decl.is_table()) {
    fail_argument("table '", decl.name, "' is read with ", decl.table_rank, " indices: ", decl.name,
                  "[...]; found none");
  }
  Node node;
  node.op = Op::kOperand;
  node.type = decl.type;
  node.payload = number;
  return intern(node);
}

NodeId Builder::gather(std::uint32_t number, std::span<const NodeId> indices) {
  if (number >= operands_.size()) fail_bug("operand ", number, " is not declared");
  const OperandDecl& decl = operands_[number];
  if (!decl.is_table())
    fail_argument("operand '", decl.name, "' is no table: read it without indices, or declare it as a table");
  if (indices.size() != static_cast<std::size_t>(decl.table_rank)) {
    fail_argument("table '", decl.name, "' has rank ", decl.table_rank, ", found ", indices.size(), " indices");
  }
  Node node;
  node.op = Op::kGather;
  node.type = decl.type;
  node.payload = number;
  node.arg_count = static_cast<std::uint8_t>(indices.size());
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const Type found = this->node(indices[i]).type;
    if (found != Type::kI32) {
      fail_argument("table '", decl.name, "': index ", i, " must be i32, found ", to_string(found),
                    "; convert with i32()");
    }
    node.args[i] = indices[i];
  }
  return intern(node);
}

NodeId Builder::make(Op op, std::span<const NodeId> args) {
  std::array<Type, kMaxArgs> types{};
  if (args.size() > types.size())
    fail_argument("'", info(op).name, "' takes ", info(op).arity, " arguments, found ", args.size());
  for (std::size_t i = 0; i < args.size(); ++i) types[i] = node(args[i]).type;
  std::string why;
  const auto type = infer_type(op, std::span(types.data(), args.size()), &why);
  if (!type) fail_argument(why);
  Node made;
  made.op = op;
  made.type = *type;
  made.arg_count = static_cast<std::uint8_t>(args.size());
  for (std::size_t i = 0; i < args.size(); ++i) made.args[i] = args[i];
  return intern(made);
}

NodeId Builder::remake(const Node& node, std::span<const NodeId> args) {
  switch (node.op) {
    case Op::kConstant: return intern(node);
    case Op::kOperand: return operand(node.payload);
    case Op::kGather: return gather(node.payload, args);
    default: return is_plain_leaf(node.op) ? leaf(node.op) : make(node.op, args);
  }
}

const Node& Builder::node(NodeId id) const {
  if (id >= nodes_.size()) fail_bug("node ", id, " does not exist");
  return nodes_[id];
}

NodeId Builder::intern(const Node& node) {
  const auto found = ids_.find(node);
  if (found != ids_.end()) return found->second;
  if (nodes_.size() >= kMaxNodes) fail_unsupported("the program has more than ", kMaxNodes, " nodes; make it smaller");
  const auto id = static_cast<NodeId>(nodes_.size());
  nodes_.push_back(node);
  ids_.emplace(node, id);
  return id;
}

Program Builder::finish(NodeId value, NodeId keep) const {
  std::vector<Root> roots{{RootKind::kValue, value, 0, {kNoNode, kNoNode, kNoNode, kNoNode}}};
  if (keep != kNoNode) roots.push_back({RootKind::kKeep, keep, 0, {kNoNode, kNoNode, kNoNode, kNoNode}});
  return finish(roots);
}

Program Builder::finish(std::span<const Root> roots) const {
  for (const Root& root : roots) {
    node(root.node);
    for (const NodeId index : root.indices) {
      if (index != kNoNode) node(index);
    }
  }
  return canonical(operands_, nodes_, roots);
}

float constant_f32(const Node& node) { return std::bit_cast<float>(node.payload); }
std::int32_t constant_i32(const Node& node) { return static_cast<std::int32_t>(node.payload); }
bool constant_bool(const Node& node) { return node.payload != 0; }

std::span<const NodeId> indices_of(const Program& program, const Root& root) {
  if (root.kind != RootKind::kOperandAdjoint) return {};
  return {root.indices.data(), static_cast<std::size_t>(program.operands()[root.operand].table_rank)};
}

}  // namespace scoremod::ir
