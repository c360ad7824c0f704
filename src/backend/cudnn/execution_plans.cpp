#include "backend/cudnn/execution_plans.hpp"

#include <algorithm>

#include "backend/cuda/workspace_alignment.hpp"

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

/// All run on one stream, one after the other.
std::size_t CudnnBackwardPlan::workspace_bytes() const {
  return cuda::with_room_to_align(std::max({plan_->workspace_bytes(), ways_.plan ? ways_.plan->workspace_bytes() : 0,
                                            pass_ ? pass_->workspace_bytes() : 0}));
}

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
  if (ways_.is_fused(tensors.d_operands)) {
    call.attention[kUidDBias] = tensors.d_operands[*ways_.fused];
    return ways_.plan->execute(call, parameters, cuda::aligned(workspace));
  }
  plan_->execute(call, parameters, cuda::aligned(workspace));
  const bool wanted = std::ranges::any_of(tensors.d_operands, [](const void* data) { return data != nullptr; });
  if (wanted) pass_->execute(tensors, parameters, cuda::aligned(workspace));
}

}  // namespace scoremod::backend::cudnn
