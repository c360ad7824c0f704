#pragma once

#include <initializer_list>
#include <span>
#include <unordered_map>
#include <vector>

#include "scoremod/program.hpp"

#include "ir/op_table.hpp"

namespace scoremod::ir {

/// More nodes than this are refused, so that no input makes the compiler run away.
inline constexpr std::size_t kMaxNodes = 1u << 16;
/// The limit of operands, and of the bytes of an operand's name.
inline constexpr std::size_t kMaxOperands = 1024;
inline constexpr std::size_t kMaxNameBytes = 64;

/// Makes programs. Equal nodes are made once (hash-consing), types are checked at once. finish() drops unreachable
/// nodes and numbers the rest. A mistake throws Error(kInvalidArgument), more than the limits Error(kUnsupported).
class Builder {
 public:
  /// Declares an operand and returns its number. Names are identifiers, no keyword of the text form, and unique.
  std::uint32_t declare(const OperandDecl& decl);

  NodeId leaf(Op op);
  NodeId constant(float value);
  NodeId constant(std::int32_t value);
  NodeId constant(bool value);
  /// Reads a broadcast operand.
  NodeId operand(std::uint32_t number);
  /// Reads a table at i32 indices, one for each dimension.
  NodeId gather(std::uint32_t number, std::span<const NodeId> indices);
  NodeId make(Op op, std::span<const NodeId> args);
  NodeId make(Op op, std::initializer_list<NodeId> args) { return make(op, std::span(args.begin(), args.size())); }
  /// Makes a copy of a node of another program (or of this builder) with these arguments.
  NodeId remake(const Node& node, std::span<const NodeId> args);

  const Node& node(NodeId id) const;
  const std::vector<OperandDecl>& operands() const { return operands_; }
  std::size_t node_count() const { return nodes_.size(); }

  /// A user's program. keep may be kNoNode.
  Program finish(NodeId value, NodeId keep = kNoNode) const;
  /// Any roots, in the order kValue, kKeep, kScoreAdjoint, kOperandAdjoint by operand.
  Program finish(std::span<const Root> roots) const;

 private:
  NodeId intern(const Node& node);

  struct NodeHash {
    std::size_t operator()(const Node& node) const;
  };
  std::vector<OperandDecl> operands_;
  std::vector<Node> nodes_;
  std::unordered_map<Node, NodeId, NodeHash> ids_;
};

/// The bits of a constant node's value.
float constant_f32(const Node& node);
std::int32_t constant_i32(const Node& node);
bool constant_bool(const Node& node);

/// The arguments of a node that are in use.
inline std::span<const NodeId> args_of(const Node& node) { return {node.args.data(), node.arg_count}; }
/// The indices of an operand adjoint that are in use (none for a broadcast operand).
std::span<const NodeId> indices_of(const Program& program, const Root& root);

}  // namespace scoremod::ir
