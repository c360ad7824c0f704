#include "backend/cuda/gradient_source.hpp"

#include "backend/cuda/exact_sum.hpp"
#include "backend/cuda/gradient_text.hpp"
#include "backend/cuda/gradients_kernel.hpp"
#include "backend/cuda/program_source.hpp"
#include "base/fail.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::cuda {
namespace {

std::string delta_kernel(const AttentionProblem& problem) {
  const Strides o = problem::strides_of(problem, problem::TensorRole::kO);
  const std::string load = concat("load_", dtype_name(problem.dtype));
  const std::int64_t rows = problem.batch * problem.heads_q * problem.seq_q;
  return concat("extern \"C\" __global__ void row_deltas(const void* o, const void* d_o, float* deltas) {\n",
                "const long long row = blockIdx.x * ", kGradientThreads / 32,
                "LL + threadIdx.x / 32;\nif (row >= ", rows, "LL) return;\nconst long long first = row / ",
                problem.heads_q * problem.seq_q, "LL * ", o.batch, "LL + row / ", problem.seq_q, "LL % ",
                problem.heads_q, "LL * ", o.head, "LL + row % ", problem.seq_q, "LL * ", o.sequence,
                "LL;\nfloat sum = 0.0f;\nfor (int d = threadIdx.x % 32; d < ", problem.dim_v,
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

}  // namespace

GradientSource gradient_source(const compiler::CompiledProblem& problem, std::span<const GradientTarget> targets) {
  GradientSource source = gradients_kernel(problem, targets);
  std::string text =
      concat(program_prelude(), exact_sum_source(), gradient_prelude(), delta_kernel(problem.problem), source.text);
  for (std::size_t i = 0; i < targets.size(); ++i) text += store_kernel(problem.problem, targets[i], i);
  source.text = std::move(text);
  return source;
}

}  // namespace scoremod::backend::cuda
