// A call's dropout, as kernels have it. NVRTC and the host's compiler, which fills it in, share this text.
#pragma once

/// DropoutMask's key and threshold (problem/dropout_mask.hpp), and the factor of a kept weight.
struct DropoutArgument {
  unsigned key[2], threshold;
  float factor;
  const unsigned* keys;   ///< the operand of dropout keys (problem/call_dropout.hpp), in place of `key`
  long long batch, word;  ///< their distances in elements, of batches and of the words of one
};
