#include "problem/structure_key.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <string_view>

#include "problem/bound_scale.hpp"
#include "problem/canonical_writer.hpp"
#include "problem/implied_operands.hpp"
#include "problem/problem_topics.hpp"

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
      // Whether a scale is a table or a single number is in its rank alone.
      out.text(name).text(to_string(dtype)).boolean(gradient).list(shape.size());
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

Sequences at_sizes_of(const Sequences& other, Sequences sequences) {
  sequences.batch = other.batch;
  sequences.heads_q = other.heads_q;
  sequences.heads_kv = other.heads_kv;
  sequences.seq_q = other.seq_q;
  sequences.seq_kv = other.seq_kv;
  if (sequences.tokens_q && other.tokens_q) sequences.tokens_q = other.tokens_q;
  if (sequences.tokens_kv && other.tokens_kv) sequences.tokens_kv = other.tokens_kv;
  if (sequences.paged && other.paged) {
    sequences.paged->blocks = other.paged->blocks;
    sequences.paged->blocks_per_sequence = other.paged->blocks_per_sequence;
  }
  return sequences;
}

bool same_layout(const TensorLayout& tensor, const TensorLayout& other) { return tensor.layout == other.layout; }

bool same_layout(const std::optional<TensorLayout>& tensor, const std::optional<TensorLayout>& other) {
  return tensor.has_value() == other.has_value() && (!tensor || same_layout(*tensor, *other));
}

bool same_layouts(const TensorLayouts& tensors, const TensorLayouts& others) {
  const auto& [q, k, v, o, d_o, dq, dk, dv] = tensors;
  return same_layout(q, others.q) && same_layout(k, others.k) && same_layout(v, others.v) && same_layout(o, others.o) &&
         same_layout(d_o, others.d_o) && same_layout(dq, others.dq) && same_layout(dk, others.dk) &&
         same_layout(dv, others.dv);
}

/// By the bits, as keys have them: 0 and -0 differ.
bool same_bits(float number, float other) {
  return std::bit_cast<std::uint32_t>(number) == std::bit_cast<std::uint32_t>(other);
}

bool same_softmax(const SoftmaxOptions& options, const SoftmaxOptions& others, bool with_scale) {
  const auto& [scale, sink, dropout, dropout_keys] = options;
  if (sink != others.sink || !same_bits(dropout, others.dropout) || dropout_keys != others.dropout_keys) return false;
  if (!with_scale) return true;
  return scale.has_value() == others.scale.has_value() && (!scale || same_bits(*scale, *others.scale));
}

bool same_operand(const OperandSpec& operand, const OperandSpec& other) {
  const auto& [name, dtype, shape, strides, gradient] = operand;
  return dtype == other.dtype && gradient == other.gradient && shape.size() == other.shape.size() && name == other.name;
}

}  // namespace

bool same_structure(const AttentionProblem& problem, const AttentionProblem& other) {
  static_assert(
      kAllTopics<Sequences, TensorDTypes, TensorLayouts, SoftmaxOptions, OutputOptions, BackwardOptions, ScoreProgram>);
  // Programs come first: they tell most problems apart, and copies of one share it.
  return problem.program == other.program &&
         at_sizes_of(topic<Sequences>(other), topic<Sequences>(problem)) == topic<Sequences>(other) &&
         topic<TensorDTypes>(problem) == topic<TensorDTypes>(other) &&
         same_layouts(topic<TensorLayouts>(problem), topic<TensorLayouts>(other)) &&
         same_softmax(topic<SoftmaxOptions>(problem), topic<SoftmaxOptions>(other), reads_scale(problem.program)) &&
         topic<OutputOptions>(problem) == topic<OutputOptions>(other) &&
         topic<BackwardOptions>(problem) == topic<BackwardOptions>(other) &&
         std::ranges::equal(problem.operands, other.operands, same_operand) &&
         has_dropout_places(problem) == has_dropout_places(other) && has_row_scales(problem) == has_row_scales(other);
}

Bytes structure_key(const AttentionProblem& problem) {
  // The scale that a program reads becomes a constant, and follows from the head dim where none is given.
  StructureWriter writer(reads_scale(problem.program));
  visit_members(problem, writer);
  // These problems have larger tables of dropout keys, in another format.
  writer.out.boolean(has_dropout_places(problem));
  // Kernels multiply scores and weights by such scales, and no others.
  writer.out.boolean(has_row_scales(problem));
  return writer.out.written();
}

}  // namespace scoremod::problem
