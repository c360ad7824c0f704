// hopper_backward_keys computes dk by warpgroups of keys, and dv too if the accumulators of both fit into the
// registers.
#pragma once

#include "backend/kernels/hopper/key_groups.cuh"

SCOREMOD_KERNEL(kThreads + kGroup, 1) hopper_backward_keys(SCOREMOD_MAPPED_ARGUMENT all) {
  write_keys<true, !kSeparateDv, KeyGroup<true, !kSeparateDv>>(all);
}
