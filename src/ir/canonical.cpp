#include "ir/canonical.hpp"

#include <utility>

#include "ir/builder.hpp"
#include "ir/verify.hpp"

namespace scoremod::ir {
namespace {

/// Mixes one word into a running hash (the finalizer of MurmurHash3, Austin Appleby, public domain).
std::uint64_t mix(std::uint64_t hash, std::uint64_t word) {
  std::uint64_t x = hash ^ (word + 0x9e3779b97f4a7c15ull + (hash << 6) + (hash >> 2));
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  return x ^ (x >> 33);
}

std::uint64_t hash_of(const OperandDecl& decl) {
  std::uint64_t hash = mix(static_cast<std::uint64_t>(decl.type), static_cast<std::uint64_t>(decl.table_rank));
  for (const char c : decl.name) hash = mix(hash, static_cast<unsigned char>(c));
  for (const bool axis : decl.axes) hash = mix(hash, axis ? 1 : 0);
  return hash;
}

std::uint64_t hash_of(const Root& root) {
  std::uint64_t hash = mix(static_cast<std::uint64_t>(root.kind), root.node);
  hash = mix(hash, root.operand);
  for (const NodeId index : root.indices) hash = mix(hash, index);
  return hash;
}

/// Copies reachable nodes in post-order. Iterative: a program may be tens of thousands of nodes deep.
class Numbering {
 public:
  explicit Numbering(const std::vector<Node>& nodes) : nodes_(nodes), new_id_(nodes.size(), kNoNode) {}

  NodeId visit(NodeId start) {
    stack_.push_back({start, 0});
    while (!stack_.empty()) {
      auto& [id, next_arg] = stack_.back();
      const Node& node = nodes_[id];
      if (new_id_[id] != kNoNode) {
        stack_.pop_back();
      } else if (next_arg < node.arg_count) {
        const NodeId arg = node.args[next_arg++];
        stack_.push_back({arg, 0});
      } else {
        emit(id);
        stack_.pop_back();
      }
    }
    return new_id_[start];
  }

  std::vector<Node> take() { return std::move(out_); }

 private:
  void emit(NodeId id) {
    Node copy = nodes_[id];
    for (std::size_t i = 0; i < copy.arg_count; ++i) copy.args[i] = new_id_[copy.args[i]];
    new_id_[id] = static_cast<NodeId>(out_.size());
    out_.push_back(copy);
  }

  const std::vector<Node>& nodes_;
  std::vector<NodeId> new_id_;
  std::vector<Node> out_;
  std::vector<std::pair<NodeId, std::size_t>> stack_;
};

}  // namespace

std::uint64_t hash_of(const Node& node) {
  std::uint64_t hash = mix(static_cast<std::uint64_t>(node.op), static_cast<std::uint64_t>(node.type));
  for (const NodeId arg : node.args) hash = mix(hash, arg);
  return mix(hash, node.payload);
}

Program canonical(const std::vector<OperandDecl>& operands, const std::vector<Node>& nodes,
                  std::span<const Root> roots) {
  auto data = std::make_shared<Program::Data>();
  data->operands = operands;
  Numbering numbering(nodes);
  for (Root root : roots) {
    root.node = numbering.visit(root.node);
    for (NodeId& index : root.indices) {
      if (index != kNoNode) index = numbering.visit(index);
    }
    data->roots.push_back(root);
  }
  data->nodes = numbering.take();
  for (const OperandDecl& decl : data->operands) data->hash = mix(data->hash, hash_of(decl));
  for (const Node& node : data->nodes) data->hash = mix(data->hash, hash_of(node));
  for (const Root& root : data->roots) data->hash = mix(data->hash, hash_of(root));
  Program program(std::move(data));
  verify(program);
  return program;
}

}  // namespace scoremod::ir
