// hopper_backward_keys, and hopper_backward_values where the sums of both do not fit into the registers: dk and dv by
// groups of keys.
#pragma once

#include "backend/kernels/device/hopper_key_groups.cuh"

/*{keys}*/
SCOREMOD_KERNEL(kThreads + kGroup, 1) hopper_backward_keys(SCOREMOD_MAPPED_ARGUMENT all) {
  write_keys<true, !kSplitKeys, KeyGroup<true, !kSplitKeys>>(all);
}
/*{}*/
/*{values}*/
SCOREMOD_KERNEL(kThreads + kGroup, 1) hopper_backward_values(SCOREMOD_MAPPED_ARGUMENT all) {
  if (kSplitKeys) write_keys<false, kSplitKeys, KeyGroup<false, kSplitKeys>>(all);
}
/*{}*/
