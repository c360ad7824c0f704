// What a call's dropout is, as kernels have it. One text for the kernels' compiler and for the host's, which fills it
// in.
#pragma once

/// DropoutMask's key and threshold (problem/dropout_mask.hpp), and what a weight that is left is multiplied by.
struct DropoutArgument {
  unsigned key[2], threshold;
  float factor;
  const unsigned* keys;   ///< where a call binds them (problem/call_dropout.hpp), in place of `key`
  long long batch, word;  ///< their distances in elements, of batches and of the words of one
};
