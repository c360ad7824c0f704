#include "backend/cuda/compute/compute_source.hpp"

#include <set>

#include "backend/cuda/text/kernel_text.hpp"
#include "backend/cuda/text/program_source.hpp"
#include "base/byte_count.hpp"
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
  const std::string_view index = part(file_text("backend/cuda/compute/compute.cuh"), "indices");
  std::string text;
  for (std::size_t axis = extents.size(); axis-- > 0;) {
    text += extents[axis] == 1 ? concat("const int ", kNames[axis], " = 0;\n")
                               : fill(index, {{"name", kNames[axis]}, {"extent", extents[axis]}});
  }
  return text;
}

}  // namespace

std::int64_t size_of(const NodeTensor& tensor, const AttentionProblem& problem) {
  std::size_t size = 1;
  for (const std::int64_t extent : extents_of(tensor, problem)) {
    size = multiply_bytes(size, static_cast<std::size_t>(extent));
  }
  return static_cast<std::int64_t>(size);
}

ComputeSource compute_source(const AttentionProblem& problem, const Program& program,
                             std::span<const NodeTensor> tensors) {
  std::set<std::uint32_t> operands;
  std::string cases, outputs;
  for (std::size_t number = 0; number < tensors.size(); ++number) {
    const NodeTensor& tensor = tensors[number];
    ProgramSource source(problem, program);
    const std::string statements = source.statements(std::span(&tensor.node, 1));
    cases += fill(part(file_text("backend/cuda/compute/compute.cuh"), "cases"),
                  {{"number", number},
                   {"size", concat(size_of(tensor, problem), "LL")},
                   {"indices", index_statements(extents_of(tensor, problem))},
                   {"statements", statements},
                   {"type", tensor.type == Type::kF32 ? "float" : "int"},
                   {"output", concat("output_", number)},
                   {"value", ProgramSource::variable(tensor.node)}});
    operands.insert(source.operands().begin(), source.operands().end());
    outputs += concat(", void* output_", number);
  }
  std::string inputs;
  for (const std::uint32_t operand : operands) inputs += ", const void* " + ProgramSource::operand_name(operand);
  return {concat(file_text("backend/cuda/text/program_prelude.cuh"),
                 fill(file_text("backend/cuda/compute/compute.cuh"),
                      {{"threads", kComputeThreads}, {"operands", inputs}, {"outputs", outputs}, {"cases", cases}})),
          {operands.begin(), operands.end()}};
}

}  // namespace scoremod::backend::cuda
