#include "ir/print.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/fail.hpp"
#include "ir/builder.hpp"

namespace scoremod::ir {
namespace {

/// An expression this deep gets a name of its own, so that text stays readable and within the parser's depth.
constexpr int kMaxInlineDepth = 12;

std::string print_float(float value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::array<char, 32> buffer{};
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  std::string text(buffer.data(), result.ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

bool is_leaf(const Node& node) { return info(node.op).signature == Signature::kLeaf && node.op != Op::kGather; }

class Printer {
 public:
  explicit Printer(const Program& program)
      : program_(program),
        uses_(program.nodes().size()),
        depth_(program.nodes().size()),
        text_(program.nodes().size()) {}

  std::string run() {
    for (const OperandDecl& decl : program_.operands()) declaration(decl);
    count_uses();
    for (NodeId id = 0; id < program_.nodes().size(); ++id) expression(id);
    for (const Root& root : program_.roots()) print_root(root);
    return std::move(out_);
  }

  std::vector<std::string> take_node_texts() { return std::move(text_); }

 private:
  void declaration(const OperandDecl& decl) {
    if (decl.is_table()) {
      out_ += concat("table ", decl.name, ": ", to_string(decl.type), " rank ", decl.table_rank, "\n");
      return;
    }
    std::string axes;
    for (int i = 0; i < kAxisCount; ++i) {
      if (!decl.axes[static_cast<std::size_t>(i)]) continue;
      if (!axes.empty()) axes += ", ";
      axes += axis_name(static_cast<Axis>(i));
    }
    out_ += concat("operand ", decl.name, ": ", to_string(decl.type), " [", axes, "]\n");
  }

  void count_uses() {
    for (const Node& node : program_.nodes()) {
      for (const NodeId arg : args_of(node)) ++uses_[arg];
    }
    for (const Root& root : program_.roots()) {
      ++uses_[root.node];
      for (const NodeId index : indices_of(program_, root)) ++uses_[index];
    }
  }

  /// Writes a node's expression from its arguments' texts; names it when it is shared or deep.
  void expression(NodeId id) {
    const Node& node = program_.nodes()[id];
    std::string text = plain(node);
    for (const NodeId arg : args_of(node)) depth_[id] = std::max(depth_[id], depth_[arg] + 1);
    if (!is_leaf(node) && (uses_[id] > 1 || depth_[id] >= kMaxInlineDepth)) {
      const std::string name = concat("%", names_++);
      out_ += concat("let ", name, " = ", text, "\n");
      text = name;
      depth_[id] = 0;
      named_.push_back(id);
    }
    text_[id] = std::move(text);
  }

  std::string plain(const Node& node) {
    switch (node.op) {
      case Op::kConstant: return print_constant(node);
      case Op::kOperand: return program_.operands()[node.payload].name;
      case Op::kGather: return program_.operands()[node.payload].name + "[" + list(args_of(node)) + "]";
      default: break;
    }
    const OpInfo& row = info(node.op);
    switch (row.notation) {
      case Notation::kKeyword: return row.name;
      case Notation::kCall: return concat(row.name, "(", list(args_of(node)), ")");
      case Notation::kPrefix: return prefix(row, node.args[0]);
      case Notation::kInfix: break;
    }
    // The left argument may be a comparison chain's or a sum's own level; comparisons do not chain.
    const int left = row.precedence == kComparePrecedence ? row.precedence + 1 : row.precedence;
    return argument(node.args[0], left) + " " + row.name + " " + argument(node.args[1], row.precedence + 1);
  }

  std::string prefix(const OpInfo& row, NodeId arg) {
    // "-1" is a literal; the negation of a literal needs brackets.
    if (program_.nodes()[arg].op == Op::kConstant) return concat(row.name, "(", text_[arg], ")");
    return row.name + argument(arg, kPrefixPrecedence);
  }

  std::string list(std::span<const NodeId> args) {
    std::string text;
    for (const NodeId arg : args) text += (text.empty() ? "" : ", ") + text_[arg];
    return text;
  }

  std::string argument(NodeId arg, int minimum) {
    const bool named = std::binary_search(named_.begin(), named_.end(), arg);
    if (named || info(program_.nodes()[arg].op).precedence >= minimum) return text_[arg];
    return "(" + text_[arg] + ")";
  }

  void print_root(const Root& root) {
    switch (root.kind) {
      case RootKind::kValue: out_ += "value = "; break;
      case RootKind::kKeep: out_ += "keep = "; break;
      case RootKind::kScoreAdjoint: out_ += "d_score = "; break;
      case RootKind::kOperandAdjoint: {
        const std::span<const NodeId> indices = indices_of(program_, root);
        out_ += concat("accumulate ", program_.operands()[root.operand].name);
        if (!indices.empty()) out_ += "[" + list(indices) + "]";
        out_ += " += ";
      }
    }
    out_ += text_[root.node] + "\n";
  }

  const Program& program_;
  std::vector<int> uses_;
  std::vector<int> depth_;
  std::vector<std::string> text_;
  std::vector<NodeId> named_;  // ascending
  int names_ = 0;
  std::string out_;
};

}  // namespace

std::string print(const Program& program) { return Printer(program).run(); }

std::vector<std::string> print_nodes(const Program& program) {
  Printer printer(program);
  printer.run();
  return printer.take_node_texts();
}

std::string print_constant(const Node& node) {
  switch (node.type) {
    case Type::kF32: return print_float(constant_f32(node));
    case Type::kI32: return std::to_string(constant_i32(node));
    case Type::kBool: return constant_bool(node) ? "true" : "false";
  }
  return "";
}

}  // namespace scoremod::ir
