// hopper_backward_values computes dv if hopper_backward_keys has no registers for it.
#pragma once

#include "backend/kernels/hopper/key_groups.cuh"

SCOREMOD_KERNEL(kThreads + kGroup, 1) hopper_backward_values(SCOREMOD_MAPPED_ARGUMENT all) {
  if (kSeparateDv) write_keys<false, kSeparateDv, KeyGroup<false, kSeparateDv>>(all);
}
