#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "scoremod/attention.hpp"
#include "scoremod/tensors.hpp"

#include "attention_state.hpp"
#include "xla/ffi/api/ffi.h"

namespace scoremod::jax {

struct ForwardCall {
  ForwardArgs args;
  Buffer workspace;
};

struct BackwardCall {
  BackwardArgs args;
  Buffer workspace;
};

/// The buffers of a forward custom call: q, k, v, then every operand in the order of the program's declarations -> o,
/// lse when the problem has stats, max_logit and amax_o likewise, and the workspace. `tensors` is tensors_of() the
/// attention's problem. Throws Error(kBug) when their number, dtypes or shapes aren't the problem's: Python made both.
///
/// The workspace is a result like any other, so that XLA plans its memory with everything else; a device's allocator is
/// never called while the call runs, which is what lets XLA record the call in a CUDA graph. It is u8 [n], n the bytes
/// needed and what alignment may take.
ForwardCall forward_call(const Prepared& prepared, const std::vector<TensorInfo>& tensors,
                         const xla::ffi::RemainingArgs& arguments, const xla::ffi::RemainingRets& results);

/// Of a backward one: q, k, v, o, lse, d_o, then every operand -> dq, dk, dv, the gradient of each operand whose number
/// is in `wanted` in that order, and the workspace. `gradients` is gradients_of() the attention's problem.
BackwardCall backward_call(const Prepared& prepared, const std::vector<TensorInfo>& tensors,
                           const std::vector<TensorInfo>& gradients, const xla::ffi::RemainingArgs& arguments,
                           const xla::ffi::RemainingRets& results, xla::ffi::Span<const std::int64_t> wanted);

/// Bytes of a call's workspace, wherever it begins. Throws Error(kBug) without a result.
std::size_t workspace_bytes(const xla::ffi::RemainingRets& results);

}  // namespace scoremod::jax
