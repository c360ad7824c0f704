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

/// The buffers of a forward custom call. Inputs are q, k, v, then every operand in the order of the program's
/// declarations. Results are o, then lse, max_logit and amax_o as the problem has them, and the workspace. `tensors` is
/// tensors_of() the attention's problem. Throws Error(kBug) when their number, dtypes or shapes aren't the problem's:
/// Python made both.
///
/// The workspace is a result like any other, so that XLA plans its memory with everything else. No call uses a device's
/// allocator, so XLA can record it in a CUDA graph. It is u8 [n], with room for alignment.
ForwardCall forward_call(const Prepared& prepared, const std::vector<TensorInfo>& tensors,
                         const xla::ffi::RemainingArgs& arguments, const xla::ffi::RemainingRets& results);

/// The buffers of a backward one. Inputs are q, k, v, o, lse, d_o, then every operand. Results are dq, dk, dv, the
/// operand gradients, and the workspace. `wanted` has the operands' numbers in the order of the gradients. `gradients`
/// is gradients_of() the attention's problem.
BackwardCall backward_call(const Prepared& prepared, const std::vector<TensorInfo>& tensors,
                           const std::vector<TensorInfo>& gradients, const xla::ffi::RemainingArgs& arguments,
                           const xla::ffi::RemainingRets& results, xla::ffi::Span<const std::int64_t> wanted);

/// Bytes of a call's workspace, wherever it begins. Throws Error(kBug) without a result.
std::size_t workspace_bytes(const xla::ffi::RemainingRets& results);

}  // namespace scoremod::jax
