#include "ir/verify.hpp"

#include "base/fail.hpp"
#include "ir/builder.hpp"

namespace scoremod::ir {
namespace {

void verify_operand_read(const Program& program, NodeId id) {
  const Node& node = program.nodes()[id];
  if (node.payload >= program.operands().size())
    fail_bug("node ", id, " reads operand ", node.payload, ", which is not declared");
  const OperandDecl& decl = program.operands()[node.payload];
  if (node.type != decl.type) fail_bug("node ", id, " reads operand '", decl.name, "' as another type than its own");
  if (decl.table_rank != node.arg_count || decl.is_table() != (node.op == Op::kGather)) {
    fail_bug("node ", id, " reads operand '", decl.name, "' with ", int{node.arg_count}, " indices, expected ",
             decl.table_rank);
  }
  for (const NodeId arg : args_of(node)) {
    if (program.nodes()[arg].type != Type::kI32) fail_bug("node ", id, " has an index that is not i32");
  }
}

void verify_leaf(const Node& node, NodeId id) {
  if (node.arg_count != 0) fail_bug("node ", id, " is a leaf and has arguments");
  if (node.op == Op::kConstant) {
    if (node.type == Type::kBool && node.payload > 1) fail_bug("node ", id, " is a bool constant other than 0 and 1");
    return;
  }
  const bool is_float = node.op == Op::kScore || node.op == Op::kUpstream || node.op == Op::kScale;
  const Type expected = is_float ? Type::kF32 : Type::kI32;
  if (node.type != expected || node.payload != 0) fail_bug("node ", id, " is no proper '", info(node.op).name, "'");
}

void verify_node(const Program& program, NodeId id, bool derivative) {
  const Node& node = program.nodes()[id];
  std::array<Type, kMaxArgs> types{};
  if (node.arg_count > kMaxArgs) fail_bug("node ", id, " has ", int{node.arg_count}, " arguments");
  for (std::size_t i = 0; i < node.arg_count; ++i) {
    if (node.args[i] >= id) fail_bug("node ", id, " has an argument that does not come before it");
    types[i] = program.nodes()[node.args[i]].type;
  }
  if (node.op == Op::kUpstream && !derivative) {
    fail_argument(
        "'upstream' has a meaning only in a derivative; use it beside d_score or accumulate, or leave it out");
  }
  if (node.op == Op::kOperand || node.op == Op::kGather) return verify_operand_read(program, id);
  if (info(node.op).signature == Signature::kLeaf) return verify_leaf(node, id);
  std::string why;
  const auto type = infer_type(node.op, std::span(types.data(), node.arg_count), &why);
  if (!type) fail_bug("node ", id, ": ", why);
  if (*type != node.type)
    fail_bug("node ", id, " is marked ", to_string(node.type), ", its op gives ", to_string(*type));
}

void verify_root(const Program& program, const Root& root) {
  if (root.node >= program.nodes().size()) fail_bug("a root names node ", root.node, ", which does not exist");
  const Type found = program.nodes()[root.node].type;
  const Type expected = root.kind == RootKind::kKeep ? Type::kBool : Type::kF32;
  if (found != expected) {
    const char* what = root.kind == RootKind::kKeep ? "keep" : root.kind == RootKind::kValue ? "value" : "an adjoint";
    fail_argument(what, " must be ", to_string(expected), ", found ", to_string(found),
                  expected == Type::kF32 ? "; convert with f32()" : "; write a comparison, or convert with bool()");
  }
  if (root.kind != RootKind::kOperandAdjoint) return;
  if (root.operand >= program.operands().size()) fail_bug("an operand adjoint names operand ", root.operand);
  if (program.operands()[root.operand].type != Type::kF32) {
    fail_argument("operand '", program.operands()[root.operand].name, "' is not f32 and has no gradient");
  }
  for (const NodeId index : indices_of(program, root)) {
    if (index >= program.nodes().size() || program.nodes()[index].type != Type::kI32) {
      fail_argument("the indices of 'accumulate ", program.operands()[root.operand].name,
                    "' must be i32, one for each dimension");
    }
  }
}

}  // namespace

bool is_derivative(const Program& program) {
  return !program.roots().empty() && program.roots().back().kind >= RootKind::kScoreAdjoint;
}

void verify(const Program& program) {
  if (program.roots().empty() || program.roots().front().kind != RootKind::kValue) {
    fail_argument("a program needs 'value = ...' (the modified score), found none");
  }
  const bool derivative = is_derivative(program);
  for (NodeId id = 0; id < program.nodes().size(); ++id) verify_node(program, id, derivative);
  const Root* previous = nullptr;
  for (const Root& root : program.roots()) {
    verify_root(program, root);
    if (previous != nullptr) {
      // kOperandAdjoint is the last kind: before one that does not grow stands another.
      const bool grows =
          root.kind > previous->kind || (root.kind == RootKind::kOperandAdjoint && root.operand >= previous->operand);
      if (!grows)
        fail_argument("roots must come in the order value, keep, d_score, accumulate (by operand), each at most once");
    }
    previous = &root;
  }
}

}  // namespace scoremod::ir
