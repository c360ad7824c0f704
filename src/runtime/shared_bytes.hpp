#pragma once

#include "runtime/buffer_check.hpp"

namespace scoremod::runtime {

/// Whether two tensors have a byte in common. Exact, so that tensors which interleave in one allocation (a packed QKV)
/// are told from tensors that overlap. Takes no memory and, where both are rows of the same pitch, a few operations;
/// never more than some for each row.
bool share_bytes(const TensorUse& x, const TensorUse& y);

}  // namespace scoremod::runtime
