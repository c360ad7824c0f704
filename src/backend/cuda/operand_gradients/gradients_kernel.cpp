#include "backend/cuda/operand_gradients/gradients_kernel.hpp"

#include "backend/cuda/operand_gradients/gradient_text.hpp"
#include "backend/cuda/text/kernel_text.hpp"
#include "backend/cuda/text/program_source.hpp"
#include "base/fail.hpp"
#include "ir/builder.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::cuda {
namespace {

constexpr int kColumnsOfLane = static_cast<int>(kTileColumns) / 32;
/// Beyond this many nodes the loop over a lane's columns is not unrolled: the code would leave the instruction cache.
constexpr std::size_t kMaxUnrolledNodes = 300;
/// Tables of at most this many entries are summed in shared memory first, up to a limit for all of them together.
constexpr std::int64_t kMaxSharedTable = 2048;
constexpr std::int64_t kMaxSharedBytes = 24576;

bool is_row_sum(const GradientTarget& target) {
  return target.sum == GradientSum::kReduced && target.has(Axis::kQuery);
}
bool is_column_sum(const GradientTarget& target) {
  return target.sum == GradientSum::kReduced && target.has(Axis::kKey);
}
bool is_total(const GradientTarget& target) {
  return target.sum == GradientSum::kReduced && !is_row_sum(target) && !is_column_sum(target);
}

/// A part of the kernel's text with its holes filled.
std::string piece(std::string_view name, std::initializer_list<Hole> holes) {
  return fill(part(file_text("backend/cuda/operand_gradients/gradient_sums.cuh"), name), holes);
}

class GradientKernel {
 public:
  GradientKernel(const compiler::CompiledProblem& problem, std::span<const GradientTarget> targets)
      : problem_(problem.problem),
        derivative_(problem.backward->program),
        targets_(targets),
        source_(problem_, derivative_),
        shared_tables_(shared_tables(targets)) {}

  GradientSource write() {
    GradientSource out;
    out.text = text();
    if (has_weighted_deltas(problem_)) out.text += weighted_deltas();
    out.operands.assign(source_.operands().begin(), source_.operands().end());
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      if (targets_[i].sum != GradientSum::kZero) out.outputs.push_back(i);
    }
    return out;
  }

 private:
  /// The nodes of the forward program that a kernel evaluates before the derivative.
  std::vector<NodeId> forward_nodes() const {
    std::vector<NodeId> nodes{derivative_.value()};
    if (derivative_.keep() != kNoNode) nodes.push_back(derivative_.keep());
    return nodes;
  }
  std::string keep() const {
    return derivative_.keep() == kNoNode ? "true" : ProgramSource::variable(derivative_.keep());
  }

  std::string text() {
    const std::string forward = source_.statements(forward_nodes());
    const std::string adjoints = source_.statements(adjoint_nodes());
    return fill(file_text("backend/cuda/operand_gradients/gradient_sums.cuh"),
                {{"threads", kGradientThreads},
                 {"tile_rows", kTileRows},
                 {"tile_columns", kTileColumns},
                 {"parameters", operand_parameters() + output_parameters()},
                 {"open_tables", open_tables()},
                 {"open_sums", open_sums()},
                 {"heads", concat(problem_.heads_q, "LL")},
                 {"seq_q", problem_.seq_q},
                 {"open_rows", of_rows("open_row")},
                 {"unrolled", derivative_.nodes().size() > kMaxUnrolledNodes ? 1 : kColumnsOfLane},
                 {"forward", forward},
                 {"keep", keep()},
                 {"value", ProgramSource::variable(derivative_.value())},
                 {"adjoints", adjoints},
                 {"contributions", contributions()},
                 {"close_rows", of_rows("close_row")},
                 {"close_sums", close_sums()},
                 {"close_tables", close_tables()}});
  }

  /// With all operands that "gradients" reads, so that both kernels are given the same.
  std::string weighted_deltas() const {
    ProgramSource source(problem_, derivative_);
    return fill(file_text("backend/cuda/operand_gradients/weighted_deltas.cuh"),
                {{"parameters", operand_parameters()},
                 {"rows_of_block", kGradientThreads / 32},
                 {"heads", concat(problem_.heads_q, "LL")},
                 {"seq_q", problem_.seq_q},
                 {"forward", source.statements(forward_nodes())},
                 {"keep", keep()},
                 {"value", ProgramSource::variable(derivative_.value())}});
  }

  std::string operand_parameters() const {
    std::string text;
    for (const std::uint32_t operand : source_.operands())
      text += concat(", const void* ", ProgramSource::operand_name(operand));
    return text;
  }
  std::string output_parameters() const {
    std::string text;
    for (const GradientTarget& target : targets_) {
      if (target.sum == GradientSum::kZero) continue;
      text += concat(", ", target.sum == GradientSum::kStored ? "void" : sum_type(target), "* ", output_name(target));
    }
    return text;
  }

  /// The nodes of the operands' adjoints, and of the indices that tables' are added at.
  std::vector<NodeId> adjoint_nodes() const {
    std::vector<NodeId> nodes;
    for (const Root& root : derivative_.roots()) {
      if (target_of(root) == nullptr) continue;
      nodes.push_back(root.node);
      for (const NodeId index : ir::indices_of(derivative_, root)) nodes.push_back(index);
    }
    return nodes;
  }

  std::string open_sums() const {
    std::string text;
    for (const GradientTarget& target : targets_) {
      if (is_total(target)) text += piece("open_total", {{"sum", named("total", target)}});
      if (is_column_sum(target)) text += piece("open_column", {{"sum", named("column", target)}});
    }
    for_each_table_root([&](std::size_t root, const std::string&) { text += piece("open_run", {{"run", run(root)}}); });
    return text;
  }

  std::string close_sums() const {
    std::string text;
    for_each_table_root([&](std::size_t root, const std::string& table) {
      text += piece("close_run", {{"table", table}, {"run", run(root)}});
    });
    for (const GradientTarget& target : targets_) {
      const auto close = [&](const char* name, const char* sum) {
        text += piece(name,
                      {{"sum", named(sum, target)}, {"output", output_name(target)}, {"entry", reduced_entry(target)}});
      };
      if (is_total(target)) close("close_total", "total");
      if (is_column_sum(target)) close("close_column", "column");
    }
    return text;
  }

  /// "open_row" or "close_row" of all sums of rows.
  std::string of_rows(std::string_view name) const {
    std::string text;
    for (const GradientTarget& target : targets_) {
      if (!is_row_sum(target)) continue;
      const std::string sum = named("row", target);
      text += name == "open_row"
                  ? piece(name, {{"sum", sum}})
                  : piece(name, {{"sum", sum}, {"output", output_name(target)}, {"entry", reduced_entry(target)}});
    }
    return text;
  }

  std::string contributions() const {
    std::string text;
    for (std::size_t i = 0; i < derivative_.roots().size(); ++i) {
      if (const GradientTarget* target = target_of(derivative_.roots()[i])) text += contribution(*target, i);
    }
    return text;
  }

  const GradientTarget* target_of(const Root& root) const {
    if (root.kind != RootKind::kOperandAdjoint) return nullptr;
    for (const GradientTarget& target : targets_) {
      if (target.operand == root.operand) return &target;
    }
    return nullptr;
  }

  template <class Body>
  void for_each_table_root(const Body& body) const {
    for (std::size_t i = 0; i < derivative_.roots().size(); ++i) {
      const GradientTarget* target = target_of(derivative_.roots()[i]);
      if (target != nullptr && target->sum == GradientSum::kTable) body(i, table_name(*target));
    }
  }

  static std::string run(std::size_t root) { return concat("run_", root); }

  /// The destination of a table's contributions: shared memory first, if the table is small.
  std::string table_name(const GradientTarget& target) const {
    const bool shared = shared_tables_[static_cast<std::size_t>(&target - targets_.data())];
    return shared ? named("table", target) : output_name(target);
  }

  std::string contribution(const GradientTarget& target, std::size_t number) const {
    const Root& root = derivative_.roots()[number];
    const std::string name = concat("contribution_", number), output = output_name(target);
    const std::string text = piece("contribution", {{"name", name}, {"adjoint", ProgramSource::variable(root.node)}});
    switch (target.sum) {
      case GradientSum::kZero: return "";
      case GradientSum::kStored:
        return text + piece("add_stored",
                            {{"output", output},
                             {"store", concat("store_", dtype_name(problem::spec_of(problem_, target.operand).dtype))},
                             {"offset", entry_offset(problem_, target.operand, own_indices(target))},
                             {"name", name}});
      case GradientSum::kBlock:
        // A launch is about one batch: only its heads can meet in an entry.
        return text + piece(target.extents[1] == problem_.heads_q ? "add_to_own_entry" : "add_to_shared_entry",
                            {{"output", output}, {"entry", block_entry(target, "kv - k0")}, {"name", name}});
      case GradientSum::kReduced: return text + piece("add_to_sum", {{"sum", sum_of(target)}, {"name", name}});
      case GradientSum::kTable:
        return text + piece("add_to_table", {{"table", table_name(target)},
                                             {"run", run(number)},
                                             {"entry", table_entry(target, root)},
                                             {"name", name}});
    }
    fail_bug("no such sum");
  }

  /// The variable that a reduced target's contributions are summed in.
  static std::string sum_of(const GradientTarget& target) {
    if (is_row_sum(target)) return named("row", target);
    return is_column_sum(target) ? named("column", target) + "[j]" : named("total", target);
  }

  std::string table_entry(const GradientTarget& target, const Root& root) const {
    std::array<std::string, kAxisCount> indices;
    std::size_t d = 0;
    for (const NodeId index : ir::indices_of(derivative_, root)) {
      indices[d] = concat("clamp_index(", ProgramSource::variable(index), ", ", target.extents[d], ")");
      ++d;
    }
    return entry_number(target, indices);
  }

  std::string open_tables() const {
    std::string text;
    for_each_shared_table([&](const GradientTarget& target, std::int64_t words) {
      text +=
          piece("open_table", {{"sum_type", sum_type(target)}, {"table", named("table", target)}, {"words", words}});
    });
    return text.empty() ? "" : text + "__syncthreads();\n";
  }

  std::string close_tables() const {
    std::string text;
    for_each_shared_table([&](const GradientTarget& target, std::int64_t words) {
      text +=
          piece("close_table", {{"words", words}, {"output", output_name(target)}, {"table", named("table", target)}});
    });
    return text.empty() ? "" : "__syncthreads();\n" + text;
  }

  /// body(target, how many words its sums take)
  template <class Body>
  void for_each_shared_table(const Body& body) const {
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      if (shared_tables_[i]) body(targets_[i], targets_[i].entries() * sum_words(targets_[i]));
    }
  }

  const AttentionProblem& problem_;
  const Program& derivative_;
  std::span<const GradientTarget> targets_;
  ProgramSource source_;
  const std::vector<bool> shared_tables_;
};

}  // namespace

std::vector<bool> shared_tables(std::span<const GradientTarget> targets) {
  std::vector<bool> shared(targets.size());
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i].sum != GradientSum::kTable || targets[i].entries() > kMaxSharedTable) continue;
    const std::int64_t own = targets[i].entries() * targets[i].sum_bytes();
    shared[i] = bytes + own <= kMaxSharedBytes;
    if (shared[i]) bytes += own;
  }
  return shared;
}

GradientSource gradients_kernel(const compiler::CompiledProblem& problem, std::span<const GradientTarget> targets) {
  return GradientKernel(problem, targets).write();
}

}  // namespace scoremod::backend::cuda
