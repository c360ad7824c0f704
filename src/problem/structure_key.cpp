#include "problem/structure_key.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "problem/bound_scale.hpp"
#include "problem/canonical_writer.hpp"
#include "problem/implied_operands.hpp"

namespace scoremod::problem {
namespace {

/// The members that are sizes alone. A member that is named nowhere here is structure.
constexpr std::array<std::string_view, 5> kSizes{"batch", "heads_q", "heads_kv", "seq_q", "seq_kv"};

/// Writes a problem without its sizes; of optional fields, whether they are there.
class StructureWriter : public ProblemWriter {
 public:
  explicit StructureWriter(bool reads_scale) : reads_scale_(reads_scale) {}

  void operator()(std::string_view name, const auto& member) {
    if (std::ranges::find(kSizes, name) != kSizes.end()) return;
    if (name == "scale" && !reads_scale_) return;
    out.text(name);
    write_member(member);
  }

 private:
  void write_member(const std::optional<std::int64_t>& tokens) { out.boolean(tokens.has_value()); }
  /// The size of a block is a constant of the kernels' text.
  void write_member(const std::optional<PagedKeys>& paged) { out.integer(paged ? paged->block_size : 0); }
  void write_member(const TensorLayout& tensor) { write(tensor.layout); }
  void write_member(const std::optional<TensorLayout>& tensor) {
    out.boolean(tensor.has_value());
    if (tensor) write_member(*tensor);
  }
  void write_member(const std::vector<OperandSpec>& operands) {
    out.list(operands.size());
    for (const OperandSpec& operand : operands) {
      const auto& [name, dtype, shape, strides, gradient] = operand;
      out.text(name).text(to_string(dtype)).boolean(gradient);
    }
  }
  /// Its members and not its text, which takes longer to print than to compile some problems.
  void write_member(const Program& program) {
    out.list(program.operands().size());
    for (const OperandDecl& decl : program.operands()) {
      const auto& [name, type, axes, table_rank] = decl;
      out.text(name).integer(static_cast<std::int64_t>(type)).integer(table_rank);
      for (const bool axis : axes) out.boolean(axis);
    }
    out.list(program.nodes().size());
    for (const Node& node : program.nodes()) {
      const auto& [op, type, arg_count, args, payload] = node;
      out.integer(static_cast<std::int64_t>(op)).integer(static_cast<std::int64_t>(type)).integer(payload);
      out.list(arg_count);
      for (std::size_t i = 0; i < arg_count; ++i) out.integer(args[i]);
    }
    out.list(program.roots().size());
    for (const Root& root : program.roots()) {
      const auto& [kind, node, operand, indices] = root;
      out.integer(static_cast<std::int64_t>(kind)).integer(node).integer(operand);
      for (const NodeId index : indices) out.integer(index);
    }
  }
  void write_member(const auto& member) { write(member); }

  bool reads_scale_;
};

}  // namespace

Bytes structure_key(const AttentionProblem& problem) {
  // The scale that a program reads becomes a constant, and follows from the head dim where none is given.
  StructureWriter writer(reads_scale(problem.program));
  visit_members(problem, writer);
  // These problems have larger tables of dropout keys, in another format.
  writer.out.boolean(has_dropout_places(problem));
  return writer.out.written();
}

}  // namespace scoremod::problem
