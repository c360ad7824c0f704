#include "backend/cuda/gradient_source.hpp"

#include "backend/cuda/exact_sum.hpp"
#include "backend/cuda/program_source.hpp"
#include "base/fail.hpp"
#include "ir/builder.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::cuda {
namespace {

constexpr std::array<const char*, kAxisCount> kIndexNames{"b", "h", "q", "kv"};
constexpr int kLanes = 32;
constexpr int kWarps = kGradientThreads / kLanes;
constexpr int kColumnsOfLane = static_cast<int>(kTileColumns) / kLanes;
/// Beyond this many nodes the loop over a lane's columns is not unrolled: the code would leave the instruction cache.
constexpr std::size_t kMaxUnrolledNodes = 300;
/// Tables of at most this many entries are summed in shared memory first, up to a limit for all of them together.
constexpr std::int64_t kMaxSharedTable = 2048;
constexpr std::int64_t kMaxSharedBytes = 24576;

constexpr const char* kGradientPrelude = R"(
SCOREMOD_FUNCTION void store_f32(void* data, long long i, float value) { ((float*)data)[i] = value; }
SCOREMOD_FUNCTION void store_f16(void* data, long long i, float value) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  ((unsigned short*)data)[i] = bits;
}
SCOREMOD_FUNCTION void store_bf16(void* data, long long i, float value) {
  const unsigned bits = __float_as_uint(value);
  const unsigned rounded = is_nan(value) ? bits | 0x400000u : bits + 0x7fffu + ((bits >> 16) & 1u);
  ((unsigned short*)data)[i] = (unsigned short)(rounded >> 16);
}
SCOREMOD_FUNCTION float warp_sum(float value) {
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}
// Adds a word of sums to others: a sum of float32, or a word of an exact sum.
SCOREMOD_FUNCTION void merge_word(float* to, const float* from, int i) {
  if (from[i] != 0.0f) atomicAdd(to + i, from[i]);
}
SCOREMOD_FUNCTION void merge_word(long long* to, const long long* from, int i) {
  if (i % kSumWords == kDigits)
    set_bits((unsigned long long*)to + i, from[i]);
  else if (from[i] != 0)
    add_word((unsigned long long*)to + i, from[i]);
}
// Called by all lanes of a warp. Neighbours often go to one entry, where adding one after the other would be slow.
template <class Sum>
SCOREMOD_FUNCTION void add_run(Sum* sums, int entry, float value) {
  int same = 0;
  __match_all_sync(0xffffffffu, entry, &same);
  if (same) {
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0 && value != 0.0f) add_to(sums, entry, value);
  } else if (value != 0.0f) {
    add_to(sums, entry, value);
  }
}
// Called by all lanes of a warp. What a lane adds to one entry for one query after the other is gathered first.
struct Run {
  int entry;
  float sum;
};
template <class Sum>
SCOREMOD_FUNCTION void add_to_table(Sum* sums, Run& run, int entry, float value) {
  const bool moves = value != 0.0f && entry != run.entry;
  if (__any_sync(0xffffffffu, moves)) {
    add_run(sums, run.entry, run.sum);
    if (moves) run.entry = entry;
    run.sum = 0.0f;
  }
  run.sum += value;
}
)";

const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "f32";
    case DType::kF16: return "f16";
    case DType::kBF16: return "bf16";
    default: fail_bug("a gradient of a dtype that has none");
  }
}

const char* sum_type(const GradientTarget& target) { return target.exact ? "long long" : "float"; }
std::int64_t sum_words(const GradientTarget& target) {
  return target.exact ? static_cast<std::int64_t>(kExactSumWords) : 1;
}
std::string output_name(const GradientTarget& target) { return concat("output_", target.operand); }
std::string named(const char* what, const GradientTarget& target) { return concat(what, "_", target.operand); }

/// The indices of a broadcast operand, those of its axes.
std::vector<std::string> own_indices(const GradientTarget& target) {
  std::vector<std::string> indices;
  for (std::size_t axis = 0; axis < kAxisCount; ++axis) {
    if (target.axes[axis]) indices.emplace_back(kIndexNames[axis]);
  }
  return indices;
}

/// Number in dense order of the entry with these indices, one for each of the target's extents.
std::string entry_number(const GradientTarget& target, const std::array<std::string, kAxisCount>& indices) {
  std::string text = "0LL";
  for (std::size_t d = 0; d < kAxisCount; ++d) {
    if (target.extents[d] > 1) text = concat("(", text, ") * ", target.extents[d], " + ", indices[d]);
  }
  return text;
}

std::string reduced_entry(const GradientTarget& target) { return entry_number(target, {"b", "h", "q", "kv"}); }

/// The sum of a kBlock target at a row and a column, for the entries of one block.
std::string block_entry(const GradientTarget& target, const char* column) {
  const std::string b = target.extents[0] > 1 ? "b" : "0", h = target.extents[1] > 1 ? "h" : "0";
  return concat("((", b, " * ", target.extents[1], "LL + ", h, ") * block_rows + r) * block_columns + ", column);
}

bool is_row_sum(const GradientTarget& target) {
  return target.sum == GradientSum::kReduced && target.has(Axis::kQuery);
}
bool is_column_sum(const GradientTarget& target) {
  return target.sum == GradientSum::kReduced && target.has(Axis::kKey);
}
bool is_total(const GradientTarget& target) {
  return target.sum == GradientSum::kReduced && !is_row_sum(target) && !is_column_sum(target);
}

/// Writes "gradients".
class GradientKernel {
 public:
  GradientKernel(const compiler::CompiledProblem& problem, std::span<const GradientTarget> targets)
      : problem_(problem.problem),
        derivative_(*problem.derivative),
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

std::string delta_kernel(const AttentionProblem& problem) {
  const Strides o = problem::strides_of(problem, problem::TensorRole::kO);
  const std::string load = concat("load_", dtype_name(problem.dtype));
  const std::int64_t rows = problem.batch * problem.heads_q * problem.seq_q;
  return concat("extern \"C\" __global__ void row_deltas(const void* o, const void* d_o, float* deltas) {\n",
                "const long long row = blockIdx.x * ", kWarps, "LL + threadIdx.x / 32;\nif (row >= ", rows,
                "LL) return;\nconst long long first = row / ", problem.heads_q * problem.seq_q, "LL * ", o.batch,
                "LL + row / ", problem.seq_q, "LL % ", problem.heads_q, "LL * ", o.head, "LL + row % ", problem.seq_q,
                "LL * ", o.sequence, "LL;\nfloat sum = 0.0f;\nfor (int d = threadIdx.x % 32; d < ", problem.dim_v,
                "; d += 32) sum += ", load, "(o, first + d * ", o.dim, "LL) * ", load, "(d_o, first + d * ", o.dim,
                "LL);\nsum = warp_sum(sum);\nif (threadIdx.x % 32 == 0) deltas[row] = sum;\n}\n");
}

/// `entries` numbered by i, whose indices `decode` defines from i, and whose sum has the number `sum`.
std::string store_kernel(const std::string& name, const char* sum_type, const char* dtype, const std::string& entries,
                         const std::string& decode, const std::string& sum, const std::string& offset) {
  return concat("extern \"C\" __global__ void ", name, "(const ", sum_type,
                "* sums, void* gradient, int q0, int rows, int k0, ",
                "int columns, int block_rows, int block_columns) {\nconst long long entries = ", entries,
                ";\nfor (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < entries; ",
                "i += gridDim.x * (long long)blockDim.x) {\n", decode, "store_", dtype, "(gradient, ", offset,
                ", sums ? sum_at(sums, ", sum, ") : 0.0f);\n}\n}\n");
}

std::string store_kernel(const AttentionProblem& problem, const GradientTarget& target, std::size_t number) {
  const OperandSpec& spec = problem::spec_of(problem, target.operand);
  const std::string name = concat("store_", number);
  const bool table = problem.program.operands()[target.operand].is_table();
  if (target.has(Axis::kQuery) && target.has(Axis::kKey)) {
    const std::string decode =
        concat("const int c = (int)(i % columns), kv = k0 + c, r = (int)(i / columns % rows), q = q0 + r;\n",
               "const long long bh = i / columns / rows;\nconst int h = (int)(bh % ", target.extents[1],
               "), b = (int)(bh / ", target.extents[1], ");\n");
    return store_kernel(name, sum_type(target), dtype_name(spec.dtype),
                        concat(target.extents[0] * target.extents[1], "LL * rows * columns"), decode,
                        block_entry(target, "c"), entry_offset(problem, target.operand, own_indices(target)));
  }
  std::string decode = "long long rest = i;\n";
  std::vector<std::string> indices;
  for (std::size_t d = kAxisCount; d-- > 0;) {
    if (!table && !target.axes[d]) continue;
    if (table && d >= spec.shape.size()) continue;
    const std::string index = concat("index_", d);
    decode +=
        concat("const int ", index, " = (int)(rest % ", target.extents[d], ");\nrest /= ", target.extents[d], ";\n");
    indices.insert(indices.begin(), index);
  }
  return store_kernel(name, sum_type(target), dtype_name(spec.dtype), concat(target.entries(), "LL"), decode, "i",
                      entry_offset(problem, target.operand, indices));
}

GradientSum sum_of(const compiler::CompiledProblem& problem, const GradientTarget& target) {
  if (!problem.derivative) fail_bug("the problem was compiled without a derivative");
  bool read = false;
  for (const Root& root : problem.derivative->roots())
    read |= root.kind == RootKind::kOperandAdjoint && root.operand == target.operand;
  if (!read) return GradientSum::kZero;
  if (problem.problem.program.operands()[target.operand].is_table()) return GradientSum::kTable;
  if (!target.has(Axis::kQuery) || !target.has(Axis::kKey)) return GradientSum::kReduced;
  const bool once = target.extents[0] == problem.problem.batch && target.extents[1] == problem.problem.heads_q;
  return once ? GradientSum::kStored : GradientSum::kBlock;
}

}  // namespace

std::vector<GradientTarget> gradient_targets(const compiler::CompiledProblem& problem,
                                             std::span<const std::uint32_t> operands) {
  const AttentionProblem& p = problem.problem;
  const std::array<std::int64_t, kAxisCount> sizes{p.batch, p.heads_q, p.seq_q, p.seq_kv};
  std::vector<GradientTarget> targets;
  for (const std::uint32_t operand : operands) {
    const OperandDecl& decl = p.program.operands()[operand];
    const OperandSpec& spec = problem::spec_of(p, operand);
    GradientTarget target;
    target.operand = operand;
    target.axes = decl.axes;
    for (std::size_t d = 0; d < kAxisCount; ++d) {
      if (decl.is_table())
        target.extents[d] = d < spec.shape.size() ? spec.shape[d] : 1;
      else
        target.extents[d] = decl.axes[d] ? sizes[d] : 1;
    }
    target.sum = sum_of(problem, target);
    target.exact = p.deterministic && (target.sum == GradientSum::kReduced || target.sum == GradientSum::kTable);
    targets.push_back(target);
  }
  return targets;
}

std::int64_t GradientTarget::sum_bytes() const {
  return exact ? static_cast<std::int64_t>(kExactSumBytes) : static_cast<std::int64_t>(sizeof(float));
}

GradientSource gradient_source(const compiler::CompiledProblem& problem, std::span<const GradientTarget> targets) {
  GradientSource source = GradientKernel(problem, targets).write();
  std::string text =
      concat(program_prelude(), exact_sum_source(), kGradientPrelude, delta_kernel(problem.problem), source.text);
  for (std::size_t i = 0; i < targets.size(); ++i) text += store_kernel(problem.problem, targets[i], i);
  source.text = std::move(text);
  return source;
}

}  // namespace scoremod::backend::cuda
