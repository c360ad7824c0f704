#include "backend/call_memory.hpp"

#include "problem/strided_tensor.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend {

using problem::TensorRole;

CallMemory::CallMemory(const AttentionProblem& problem, Direction direction, const MemorySpace& memory,
                       const ProblemInputs& inputs, OutputFill fill)
    : problem_(problem),
      memory_(memory),
      fill_(fill),
      q_(copied(inputs.q)),
      k_(copied(inputs.k)),
      v_(copied(inputs.v)) {
  for (const OwnedOperand& operand : inputs.operands) {
    operand_memory_.push_back(copied(operand.bytes));
    operands_.push_back(operand_memory_.back().data());
  }
  const std::size_t row_bytes = problem::lse_tensor(problem).bytes();
  o = unwritten(problem::bytes_of(problem, TensorRole::kO));
  lse = unwritten(row_bytes);
  if (direction == Direction::kForward) {
    if (problem.max_logit) max_logit = unwritten(row_bytes);
    if (problem.amax_o) amax_o = unwritten(sizeof(float));
    return;
  }
  d_o_ = copied(inputs.d_o);
  dq = unwritten(problem::bytes_of(problem, TensorRole::kDQ));
  dk = unwritten(problem::bytes_of(problem, TensorRole::kDK));
  dv = unwritten(problem::bytes_of(problem, TensorRole::kDV));
  for (OwnedMemory* amax : {&amax_dq, &amax_dk, &amax_dv})
    if (problem.amax_gradients) *amax = unwritten(sizeof(float));
  d_operands.resize(operands_.size());
}

ForwardTensors CallMemory::forward() const {
  ForwardTensors tensors;
  tensors.q = q_.data();
  tensors.k = k_.data();
  tensors.v = v_.data();
  tensors.operands = operands_;
  tensors.o = o.data();
  tensors.lse = reinterpret_cast<float*>(lse.data());
  tensors.max_logit = reinterpret_cast<float*>(max_logit.data());
  tensors.amax_o = reinterpret_cast<float*>(amax_o.data());
  return tensors;
}

BackwardTensors CallMemory::backward(std::span<const std::uint32_t> operand_gradients) {
  wanted_.assign(operands_.size(), nullptr);
  for (const std::uint32_t operand : operand_gradients) {
    OwnedMemory& gradient = d_operands.at(operand);
    if (gradient.data() == nullptr) gradient = unwritten(problem::bytes_of(problem::spec_of(problem_, operand)));
    wanted_[operand] = gradient.data();
  }
  BackwardTensors tensors;
  tensors.q = q_.data();
  tensors.k = k_.data();
  tensors.v = v_.data();
  tensors.o = o.data();
  tensors.lse = reinterpret_cast<const float*>(lse.data());
  tensors.d_o = d_o_.data();
  tensors.operands = operands_;
  tensors.dq = dq.data();
  tensors.dk = dk.data();
  tensors.dv = dv.data();
  tensors.d_operands = wanted_;
  tensors.amax_dq = reinterpret_cast<float*>(amax_dq.data());
  tensors.amax_dk = reinterpret_cast<float*>(amax_dk.data());
  tensors.amax_dv = reinterpret_cast<float*>(amax_dv.data());
  return tensors;
}

OwnedMemory CallMemory::copied(const std::vector<std::byte>& bytes) const {
  OwnedMemory made(memory_, bytes.size());
  if (!bytes.empty()) memory_.copy_in(made.data(), bytes.data(), bytes.size());
  return made;
}

OwnedMemory CallMemory::unwritten(std::size_t bytes) const {
  if (fill_ == OutputFill::kNone) return OwnedMemory(memory_, bytes);
  return copied(std::vector<std::byte>(bytes, std::byte{0xff}));
}

}  // namespace scoremod::backend
