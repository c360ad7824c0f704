#include "backend/cuda/gradients_kernel.hpp"

#include "backend/cuda/gradient_text.hpp"
#include "backend/cuda/program_source.hpp"
#include "base/fail.hpp"
#include "ir/builder.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::cuda {
namespace {

constexpr int kLanes = 32;
constexpr int kWarps = kGradientThreads / kLanes;
constexpr int kColumnsOfLane = static_cast<int>(kTileColumns) / kLanes;
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

class GradientKernel {
 public:
  GradientKernel(const compiler::CompiledProblem& problem, std::span<const GradientTarget> targets)
      : problem_(problem.problem),
        derivative_(problem.backward->program),
        targets_(targets),
        source_(problem_, derivative_),
        shared_tables_(targets.size()) {
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < targets.size(); ++i) {
      if (targets[i].sum != GradientSum::kTable || targets[i].entries() > kMaxSharedTable) continue;
      const std::int64_t own = targets[i].entries() * targets[i].sum_bytes();
      shared_tables_[i] = bytes + own <= kMaxSharedBytes;
      if (shared_tables_[i]) bytes += own;
    }
  }

  GradientSource write() {
    const std::string body = one_head();
    GradientSource out;
    out.operands.assign(source_.operands().begin(), source_.operands().end());
    std::string parameters;
    for (const std::uint32_t operand : out.operands) {
      parameters += concat(", const void* ", ProgramSource::operand_name(operand));
    }
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      if (targets_[i].sum == GradientSum::kZero) continue;
      out.outputs.push_back(i);
      parameters += concat(", ", targets_[i].sum == GradientSum::kStored ? "void" : sum_type(targets_[i]), "* ",
                           output_name(targets_[i]));
    }
    out.text =
        concat("extern \"C\" __global__ void __launch_bounds__(", kGradientThreads,
               ") gradients(int offset_b, int offset_h, int offset_q, int offset_kv, const float* scores, "
               "const float* products, const float* lse, const float* deltas, int b, int h0, int q0, "
               "int rows, int k0, int first_key, int columns, int block_rows, int block_columns",
               parameters, ") {\nconst int lane = threadIdx.x % 32, warp = threadIdx.x / 32;\n__shared__ float parts[",
               kWarps, "][", kTileColumns, "];\n", open_tables(), body, close_tables(), "}\n");
    return out;
  }

 private:
  std::string one_head() {
    std::string text = "const int z = blockIdx.z, h = h0 + z;\n";
    for (const GradientTarget& target : targets_) {
      if (is_total(target)) text += concat("float ", named("total", target), " = 0.0f;\n");
      if (is_column_sum(target)) {
        text += concat("float ", named("column", target), "[", kColumnsOfLane, "];\nfor (int i = 0; i < ",
                       kColumnsOfLane, "; ++i) ", named("column", target), "[i] = 0.0f;\n");
      }
    }
    for_each_table_root([&](std::size_t root, const std::string&) {
      text += concat("Run run_", root, "[", kColumnsOfLane, "] = {};\n");
    });
    text += loop_over_rows();
    for_each_table_root([&](std::size_t root, const std::string& table) {
      text += concat("for (int i = 0; i < ", kColumnsOfLane, "; ++i) add_run(", table, ", run_", root,
                     "[i].entry, run_", root, "[i].sum);\n");
    });
    for (const GradientTarget& target : targets_) {
      if (is_total(target)) text += add_total(target);
      if (is_column_sum(target)) text += add_columns(target);
    }
    return text;
  }

  /// What a row reads is loaded while the row before it is computed: otherwise the device waits for memory.
  std::string load_ahead() const {
    return concat(
        "float next_scores[", kColumnsOfLane, "], next_products[", kColumnsOfLane,
        "], next_lse = 0.0f, next_delta = 0.0f;\nconst auto load_row = [&](int r) {\nconst long long row = (b * ",
        problem_.heads_q, "LL + h) * ", problem_.seq_q, " + q0 + r;\nnext_lse = lse[row];\n",
        "next_delta = deltas[row];\n",
        "const long long first = ((long long)z * block_rows + r) * block_columns;\n#pragma unroll\n",
        "for (int j = 0; j < ", kColumnsOfLane, "; ++j) {\nconst int own_column = blockIdx.x * ", kTileColumns,
        " + j * 32 + lane, column = own_column < columns ? own_column : columns - 1;\n",
        "next_scores[j] = scores[first + column];\nnext_products[j] = products[first + column];\n}\n};\n",
        "const int first_row = blockIdx.y * ", kTileRows, " + warp * ", kTileRows / kWarps,
        ";\nif (first_row < rows) load_row(first_row);\n");
  }

  std::string loop_over_rows() {
    std::string text =
        concat(load_ahead(), "for (int i = 0; i < ", kTileRows / kWarps,
               "; ++i) {\nconst int r = first_row + i;\nif (r >= rows) break;\nconst int q = q0 + r;\n",
               "const float row_lse = next_lse, delta = next_delta;\nfloat row_scores[", kColumnsOfLane,
               "], row_products[", kColumnsOfLane, "];\n#pragma unroll\nfor (int j = 0; j < ", kColumnsOfLane,
               "; ++j) {\nrow_scores[j] = next_scores[j];\nrow_products[j] = next_products[j];\n}\nif (i + 1 < ",
               kTileRows / kWarps, " && r + 1 < rows) load_row(r + 1);\n");
    for (const GradientTarget& target : targets_) {
      if (is_row_sum(target)) text += concat("float ", named("row", target), " = 0.0f;\n");
    }
    text += concat("#pragma unroll ", derivative_.nodes().size() > kMaxUnrolledNodes ? 1 : kColumnsOfLane,
                   "\nfor (int j = 0; j < ", kColumnsOfLane, "; ++j) {\n", element(), "}\n");
    for (const GradientTarget& target : targets_) {
      if (!is_row_sum(target)) continue;
      const std::string sum = named("row", target);
      text += concat(sum, " = warp_sum(", sum, ");\nif (lane == 0) add_to(", output_name(target), ", ",
                     reduced_entry(target), ", ", sum, ");\n");
    }
    return text + "}\n";
  }

  /// One score. Lanes beyond the last column go along with it and contribute zero, so that warps stay whole.
  std::string element() {
    std::string text = concat("const int own_column = blockIdx.x * ", kTileColumns, " + j * 32 + lane;\n",
                              "const bool inside = own_column < columns;\n",
                              "const int column = inside ? own_column : columns - 1, kv = first_key + column;\n",
                              "const float score = row_scores[j];\n");
    const NodeId value = derivative_.value(), keep = derivative_.keep();
    std::vector<NodeId> forward{value};
    if (keep != kNoNode) forward.push_back(keep);
    text += source_.statements(forward);
    text += concat("const bool kept = inside", keep == kNoNode ? "" : " && " + ProgramSource::variable(keep), " && ",
                   ProgramSource::variable(value), " != -float_of_bits(0x7f800000u)",
                   " && row_lse != -float_of_bits(0x7f800000u);\n", "const float probability = expf(",
                   ProgramSource::variable(value), " - row_lse);\n",
                   "const float upstream = kept ? probability * (row_products[j] - delta) : 0.0f;\n");
    std::vector<NodeId> adjoints;
    for (const Root& root : derivative_.roots()) {
      if (target_of(root) == nullptr) continue;
      adjoints.push_back(root.node);
      for (const NodeId index : ir::indices_of(derivative_, root)) adjoints.push_back(index);
    }
    text += source_.statements(adjoints);
    for (std::size_t i = 0; i < derivative_.roots().size(); ++i) {
      if (const GradientTarget* target = target_of(derivative_.roots()[i])) {
        text += contribution(*target, i);
      }
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

  /// Where a table's contributions go: to shared memory first, if it is small.
  std::string table_name(const GradientTarget& target) const {
    const bool shared = shared_tables_[static_cast<std::size_t>(&target - targets_.data())];
    return shared ? named("table", target) : output_name(target);
  }

  std::string contribution(const GradientTarget& target, std::size_t number) const {
    const Root& root = derivative_.roots()[number];
    const std::string name = concat("contribution_", number);
    std::string text = concat("const float ", name, " = kept ? ", ProgramSource::variable(root.node), " : 0.0f;\n");
    switch (target.sum) {
      case GradientSum::kZero: return "";
      case GradientSum::kStored:
        return text + concat("if (inside && ", output_name(target), " != nullptr) store_",
                             dtype_name(problem::spec_of(problem_, target.operand).dtype), "(", output_name(target),
                             ", ", entry_offset(problem_, target.operand, own_indices(target)), ", ", name, ");\n");
      case GradientSum::kBlock: return text + add_to_block(target, name);
      case GradientSum::kReduced:
        return text +
               (is_row_sum(target)      ? named("row", target)
                : is_column_sum(target) ? named("column", target) + "[j]"
                                        : named("total", target)) +
               " += " + name + ";\n";
      case GradientSum::kTable: return text + add_to_table(target, number, name);
    }
    fail_bug("no such sum");
  }

  std::string add_to_block(const GradientTarget& target, const std::string& value) const {
    const std::string entry = block_entry(target, "kv - k0");
    // A launch is about one batch: only its heads can meet in an entry.
    if (target.extents[1] == problem_.heads_q) {
      return concat("if (inside) ", output_name(target), "[", entry, "] += ", value, ";\n");
    }
    return concat("if (inside && ", value, " != 0.0f) add_to(", output_name(target), ", ", entry, ", ", value, ");\n");
  }

  std::string add_to_table(const GradientTarget& target, std::size_t number, const std::string& value) const {
    const Root& root = derivative_.roots()[number];
    std::array<std::string, kAxisCount> indices;
    std::size_t d = 0;
    for (const NodeId index : ir::indices_of(derivative_, root)) {
      indices[d] = concat("clamp_index(", ProgramSource::variable(index), ", ", target.extents[d], ")");
      ++d;
    }
    return concat("add_to_table(", table_name(target), ", run_", number, "[j], (int)(", entry_number(target, indices),
                  "), ", value, ");\n");
  }

  static std::string add_total(const GradientTarget& target) {
    const std::string total = named("total", target);
    return concat(
        "{\nconst float sum = warp_sum(", total,
        ");\nif (lane == 0) parts[warp][0] = sum;\n__syncthreads();\nif (threadIdx.x == 0) {\nfloat all = 0.0f;\n",
        "for (int i = 0; i < ", kWarps, "; ++i) all += parts[i][0];\nadd_to(", output_name(target), ", ",
        reduced_entry(target), ", all);\n}\n__syncthreads();\n}\n");
  }

  static std::string add_columns(const GradientTarget& target) {
    return concat("{\nfor (int i = 0; i < ", kColumnsOfLane,
                  "; ++i) parts[warp][i * 32 + lane] = ", named("column", target),
                  "[i];\n__syncthreads();\nconst int column = blockIdx.x * ", kTileColumns,
                  " + threadIdx.x;\nif (threadIdx.x < ", kTileColumns, " && column < columns) {\n",
                  "const int kv = first_key + column;\nfloat all = 0.0f;\nfor (int i = 0; i < ", kWarps,
                  "; ++i) all += parts[i][threadIdx.x];\nadd_to(", output_name(target), ", ", reduced_entry(target),
                  ", all);\n}\n__syncthreads();\n}\n");
  }

  std::string open_tables() const {
    std::string text;
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      if (!shared_tables_[i]) continue;
      const std::string table = named("table", targets_[i]);
      const std::int64_t words = targets_[i].entries() * sum_words(targets_[i]);
      text += concat("__shared__ ", sum_type(targets_[i]), " ", table, "[", words, "];\nfor (int i = threadIdx.x; i < ",
                     words, "; i += ", kGradientThreads, ") ", table, "[i] = 0;\n");
    }
    return text.empty() ? "" : text + "__syncthreads();\n";
  }

  std::string close_tables() const {
    std::string text;
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      if (!shared_tables_[i]) continue;
      const std::string table = named("table", targets_[i]);
      text += concat("for (int i = threadIdx.x; i < ", targets_[i].entries() * sum_words(targets_[i]),
                     "; i += ", kGradientThreads, ") merge_word(", output_name(targets_[i]), ", ", table, ", i);\n");
    }
    return text.empty() ? "" : "__syncthreads();\n" + text;
  }

  const AttentionProblem& problem_;
  const Program& derivative_;
  std::span<const GradientTarget> targets_;
  ProgramSource source_;
  std::vector<bool> shared_tables_;
};

}  // namespace

GradientSource gradients_kernel(const compiler::CompiledProblem& problem, std::span<const GradientTarget> targets) {
  return GradientKernel(problem, targets).write();
}

}  // namespace scoremod::backend::cuda
