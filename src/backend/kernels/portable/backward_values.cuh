// attention_backward_values writes dv if attention_backward_keys has no registers for it.
#pragma once

#include "backend/kernels/portable/key_tiles.cuh"

SCOREMOD_KERNEL(kThreads, kBlocks) attention_backward_values(SCOREMOD_ARGUMENT p) {
  if (kSeparateDv) write_keys<false, kSeparateDv>(p);
}
