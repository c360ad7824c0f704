#include "backend/program_structure.hpp"

#include "ir/builder.hpp"

namespace scoremod::backend {
namespace {

void write_operands(CanonicalWriter& out, const Program& program) {
  out.list(program.operands().size());
  for (const OperandDecl& decl : program.operands()) {
    [[maybe_unused]] const auto& [name, type, axes, table_rank] = decl;
    out.integer(static_cast<std::int64_t>(type)).integer(table_rank);
    for (const bool axis : axes) out.boolean(axis);
  }
}

void write_node(CanonicalWriter& out, const Node& node) {
  const auto& [op, type, arg_count, args, payload] = node;
  const bool counts_by_kind = op == Op::kConstant && type == Type::kI32;
  out.integer(static_cast<std::int64_t>(op)).integer(static_cast<std::int64_t>(type)).list(arg_count);
  for (std::size_t i = 0; i < arg_count; ++i) out.integer(args[i]);
  out.integer(counts_by_kind ? constant_kind(ir::constant_i32(node)) : payload);
}

}  // namespace

std::int64_t constant_kind(std::int64_t value) { return value == 0 || value == 1 ? value : value > 0 ? 2 : -1; }

void write_structure(CanonicalWriter& out, const Program& program) {
  write_operands(out, program);
  out.list(program.nodes().size());
  for (const Node& node : program.nodes()) write_node(out, node);
  out.list(program.roots().size());
  for (const Root& root : program.roots()) {
    const auto& [kind, node, operand, indices] = root;
    out.integer(static_cast<std::int64_t>(kind)).integer(node).integer(operand);
    for (const NodeId index : indices) out.integer(index);
  }
}

void write_structure(CanonicalWriter& out, const masks::MaskClass& mask) {
  out.integer(static_cast<std::int64_t>(mask.kind)).boolean(mask.band && mask.band->left);
  out.boolean(mask.band && mask.band->right).list(mask.terms.size());
  for (const masks::MaskTerm& term : mask.terms) {
    out.integer(static_cast<std::int64_t>(term.kind)).integer(term.node).integer(static_cast<std::int64_t>(term.axis));
    out.boolean(term.from_start);
  }
}

}  // namespace scoremod::backend
