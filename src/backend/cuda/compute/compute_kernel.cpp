#include "backend/cuda/compute/compute_kernel.hpp"

#include <algorithm>

#include "analysis/dependence.hpp"
#include "backend/cuda/compute/compute_source.hpp"
#include "backend/cuda/modules/kernel_cache.hpp"
#include "backend/cuda/modules/kernel_module.hpp"
#include "backend/cuda/text/program_source.hpp"
#include "base/byte_count.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::cuda {
namespace {

/// Outputs of one kernel: with the operands, as many as its parameters have room for.
constexpr std::size_t kMaxTensors = 256;
/// Blocks along x: a few for each of the multiprocessors of the largest devices.
constexpr std::int64_t kMaxBlocks = 2048;

class GeneratedComputeKernel final : public ComputeKernel {
 public:
  GeneratedComputeKernel(const ComputeSource& source, std::int64_t largest, std::size_t tensors)
      : module_(cached_kernels(source.text)),
        kernel_(module_.kernel("compute")),
        operands_(source.operands),
        grid_{std::min((largest + kComputeThreads - 1) / kComputeThreads, kMaxBlocks),
              static_cast<std::int64_t>(tensors), 1} {}

  void execute(std::span<const void* const> operands, std::span<void* const> outputs, const IndexOffsets& offsets,
               void* stream) const override {
    if (outputs.size() != static_cast<std::size_t>(grid_[1])) {
      fail_bug("a kernel of ", grid_[1], " tensors was given ", outputs.size());
    }
    KernelArguments arguments;
    arguments.add(offsets.batch).add(offsets.head).add(offsets.query).add(offsets.key);
    for (const std::uint32_t operand : operands_) arguments.add(operands[operand]);
    for (void* output : outputs) arguments.add(output);
    KernelModule::launch(kernel_, grid_, kComputeThreads, arguments, stream);
  }

 private:
  KernelModule module_;
  KernelModule::Kernel kernel_;
  std::vector<std::uint32_t> operands_;
  Grid grid_;
};

}  // namespace

std::size_t bytes_of(const NodeTensor& tensor, const AttentionProblem& problem) {
  return multiply_bytes(static_cast<std::size_t>(size_of(tensor, problem)), sizeof(float));
}

std::vector<std::string> ComputeKernel::unsupported_reasons(const AttentionProblem& problem, const Program& program,
                                                            std::span<const NodeTensor> tensors) {
  std::vector<std::string> reasons;
  if (program.nodes().size() > kMaxKernelNodes) {
    reasons.push_back(concat("expected at most ", kMaxKernelNodes, " nodes to generate a kernel from, found ",
                             program.nodes().size()));
  }
  if (problem.program.operands().size() > kMaxKernelOperands || tensors.size() > kMaxTensors) {
    reasons.push_back(concat("expected at most ", kMaxKernelOperands, " operands and ", kMaxTensors,
                             " computed tensors of a kernel, found ", problem.program.operands().size(), " and ",
                             tensors.size()));
  }
  const std::vector<analysis::Dependence> dependences = analysis::dependences(program);
  for (const NodeTensor& tensor : tensors) {
    const analysis::Dependence& dependence = dependences.at(tensor.node);
    bool covered = !dependence.score;
    for (std::size_t axis = 0; axis < tensor.axes.size(); ++axis)
      covered &= tensor.axes[axis] || !dependence.axes[axis];
    if (!covered) fail_bug("node ", tensor.node, " varies with more than the axes of its tensor");
    if (program.nodes()[tensor.node].type != tensor.type) fail_bug("node ", tensor.node, " is of another type");
  }
  return reasons;
}

std::unique_ptr<const ComputeKernel> ComputeKernel::build(const AttentionProblem& problem, const Program& program,
                                                          std::span<const NodeTensor> tensors) {
  const std::vector<std::string> reasons = unsupported_reasons(problem, program, tensors);
  if (!reasons.empty()) fail_unsupported(reasons.front());
  std::int64_t largest = 0;
  for (const NodeTensor& tensor : tensors) largest = std::max(largest, size_of(tensor, problem));
  return std::make_unique<GeneratedComputeKernel>(compute_source(problem, program, tensors), largest, tensors.size());
}

}  // namespace scoremod::backend::cuda
