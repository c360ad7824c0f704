#include "backend/kernels/workspace/kernel_call.hpp"

#include <algorithm>
#include <utility>

#include "backend/cuda/program_source.hpp"
#include "backend/kernels/mask/mask_knowledge.hpp"
#include "ir/builder.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::kernels {

using problem::TensorRole;

KernelCall::KernelCall(const compiler::CompiledProblem& problem, Direction direction, CallLayout layout)
    : problem_(problem.problem),
      mask_class_(direction == Direction::kForward ? problem.forward.mask : problem.backward->mask),
      layout_(std::move(layout)) {
  const Program& program = program_of(problem, direction);
  for (const NodeId node : cuda::argument_constants(program))
    constants_.push_back(ir::constant_i32(program.nodes()[node]));
}

bool KernelCall::is_mapped() const { return std::ranges::any_of(launches(), &KernelLaunch::mapped); }

ArgumentBytes KernelCall::common_arguments(const CallParameters& parameters, std::span<const void* const> operands,
                                           std::byte* workspace) const {
  ArgumentBytes bytes = arguments_of(problem_, mask_class_, constants_, parameters, operands);
  layout_.write(bytes, workspace, once_);
  if (const auto operand = layout_.loaded_bias; operand && !operands.empty())
    bytes.call().copied = copied_argument(problem_, *operand, operands[*operand]);
  return bytes;
}

ArgumentBytes KernelCall::arguments(const ForwardTensors& tensors, const CallParameters& parameters,
                                    std::byte* workspace) const {
  ArgumentBytes bytes = common_arguments(parameters, tensors.operands, workspace);
  device::AttentionArguments& call = bytes.call();
  const AttentionProblem& p = problem_;
  call.q = tensor_argument(p, TensorRole::kQ, tensors.q, tensors.operands);
  call.k = tensor_argument(p, TensorRole::kK, tensors.k, tensors.operands);
  call.v = tensor_argument(p, TensorRole::kV, tensors.v, tensors.operands);
  call.o = tensor_argument(p, TensorRole::kO, tensors.o, tensors.operands);
  call.lse = tensors.lse;
  call.max_logit = tensors.max_logit;
  return bytes;
}

ArgumentBytes KernelCall::arguments(const BackwardTensors& tensors, const CallParameters& parameters,
                                    std::byte* workspace) const {
  ArgumentBytes bytes = common_arguments(parameters, tensors.operands, workspace);
  device::AttentionArguments& call = bytes.call();
  const AttentionProblem& p = problem_;
  call.q = tensor_argument(p, TensorRole::kQ, tensors.q, tensors.operands);
  call.k = tensor_argument(p, TensorRole::kK, tensors.k, tensors.operands);
  call.v = tensor_argument(p, TensorRole::kV, tensors.v, tensors.operands);
  call.o = tensor_argument(p, TensorRole::kO, tensors.o, tensors.operands);
  call.d_o = tensor_argument(p, TensorRole::kDO, tensors.d_o, tensors.operands);
  call.dq = tensor_argument(p, TensorRole::kDQ, tensors.dq, tensors.operands);
  call.dk = tensor_argument(p, TensorRole::kDK, tensors.dk, tensors.operands);
  call.dv = tensor_argument(p, TensorRole::kDV, tensors.dv, tensors.operands);
  call.lse = const_cast<float*>(tensors.lse);
  for (std::size_t operand = 0; operand < tensors.d_operands.size(); ++operand)
    bytes.operand(operand).gradient = tensors.d_operands[operand];
  return bytes;
}

}  // namespace scoremod::backend::kernels
