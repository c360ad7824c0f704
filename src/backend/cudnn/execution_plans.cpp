#include "backend/cudnn/execution_plans.hpp"

#include "backend/cuda/device/workspace_alignment.hpp"

namespace scoremod::backend::cudnn {
namespace {

void* writable(const void* data) { return const_cast<void*>(data); }

}  // namespace

std::size_t CudnnForwardPlan::workspace_bytes() const { return cuda::with_room_to_align(plan_->workspace_bytes()); }

void CudnnForwardPlan::execute(const ForwardTensors& tensors, const CallParameters& parameters,
                               std::span<std::byte> workspace) const {
  CallPointers call;
  call.attention[kUidQ] = writable(tensors.q);
  call.attention[kUidK] = writable(tensors.k);
  call.attention[kUidV] = writable(tensors.v);
  call.attention[kUidO] = tensors.o;
  call.attention[kUidStats] = tensors.lse;
  call.operands = tensors.operands;
  plan_->execute(call, parameters, cuda::aligned(workspace));
}

std::size_t CudnnBackwardPlan::workspace_bytes() const { return cuda::with_room_to_align(plan_->workspace_bytes()); }

void CudnnBackwardPlan::execute(const BackwardTensors& tensors, const CallParameters& parameters,
                                std::span<std::byte> workspace) const {
  CallPointers call;
  call.attention[kUidQ] = writable(tensors.q);
  call.attention[kUidK] = writable(tensors.k);
  call.attention[kUidV] = writable(tensors.v);
  call.attention[kUidO] = writable(tensors.o);
  call.attention[kUidStats] = const_cast<float*>(tensors.lse);
  call.attention[kUidDO] = writable(tensors.d_o);
  call.attention[kUidDQ] = tensors.dq;
  call.attention[kUidDK] = tensors.dk;
  call.attention[kUidDV] = tensors.dv;
  call.operands = tensors.operands;
  if (operand_) call.attention[kUidDBias] = tensors.d_operands[*operand_];
  plan_->execute(call, parameters, cuda::aligned(workspace));
}

}  // namespace scoremod::backend::cudnn
