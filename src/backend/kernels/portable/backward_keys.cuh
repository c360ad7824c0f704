// attention_backward_keys writes dk, and dv too if the accumulators of both fit into the registers.
#pragma once

#include "backend/kernels/portable/key_tiles.cuh"

SCOREMOD_KERNEL(kThreads, kBlocks) attention_backward_keys(SCOREMOD_ARGUMENT p) { write_keys<true, !kSeparateDv>(p); }
