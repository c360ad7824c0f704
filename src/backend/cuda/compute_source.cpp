#include "backend/cuda/compute_source.hpp"

#include <set>

#include "backend/cuda/program_source.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::cuda {
namespace {

std::array<std::int64_t, kAxisCount> extents_of(const NodeTensor& tensor, const AttentionProblem& problem) {
  const std::array<std::int64_t, kAxisCount> sizes{problem.batch, problem.heads_q, problem.seq_q, problem.seq_kv};
  std::array<std::int64_t, kAxisCount> extents{};
  for (std::size_t axis = 0; axis < extents.size(); ++axis) extents[axis] = tensor.axes[axis] ? sizes[axis] : 1;
  return extents;
}

/// Local indices of element `i`.
std::string index_statements(const std::array<std::int64_t, kAxisCount>& extents) {
  static constexpr std::array<const char*, kAxisCount> kNames{"b", "h", "q", "kv"};
  std::string text = "long long rest = i;\n";
  for (std::size_t axis = extents.size(); axis-- > 0;) {
    if (extents[axis] == 1) {
      text += concat("const int ", kNames[axis], " = 0;\n");
    } else {
      text +=
          concat("const int ", kNames[axis], " = (int)(rest % ", extents[axis], ");\nrest /= ", extents[axis], ";\n");
    }
  }
  return text;
}

std::string store_statement(const NodeTensor& tensor, std::size_t number) {
  const char* type = tensor.type == Type::kF32 ? "float" : "int";
  return concat("((", type, "*)output_", number, ")[i] = ", ProgramSource::variable(tensor.node), ";\n");
}

}  // namespace

std::int64_t size_of(const NodeTensor& tensor, const AttentionProblem& problem) {
  std::int64_t size = 1;
  for (const std::int64_t extent : extents_of(tensor, problem)) size *= extent;
  return size;
}

ComputeSource compute_source(const AttentionProblem& problem, const Program& program,
                             std::span<const NodeTensor> tensors) {
  std::set<std::uint32_t> operands;
  std::string cases, outputs;
  for (std::size_t number = 0; number < tensors.size(); ++number) {
    const NodeTensor& tensor = tensors[number];
    ProgramSource source(problem, program);
    const std::string statements = source.statements(std::span(&tensor.node, 1));
    cases += concat("case ", number, ":\nfor (long long i = first; i < ", size_of(tensor, problem),
                    "LL; i += step) {\n", index_statements(extents_of(tensor, problem)), statements,
                    store_statement(tensor, number), "}\nbreak;\n");
    operands.insert(source.operands().begin(), source.operands().end());
    outputs += concat(", void* output_", number);
  }
  std::string inputs;
  for (const std::uint32_t operand : operands) inputs += ", const void* " + ProgramSource::operand_name(operand);
  return {concat(program_prelude(), "\nextern \"C\" __global__ void __launch_bounds__(", kComputeThreads,
                 ") compute(int offset_b, int offset_h, int offset_q, int offset_kv", inputs, outputs,
                 ") {\nconst long long first = blockIdx.x * (long long)blockDim.x + threadIdx.x;\n",
                 "const long long step = gridDim.x * (long long)blockDim.x;\nswitch (blockIdx.y) {\n", cases, "}\n}\n"),
          {operands.begin(), operands.end()}};
}

}  // namespace scoremod::backend::cuda
