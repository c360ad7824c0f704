// hopper_backward_keys computes dk and dv by warpgroups of keys. If both accumulators do not fit into the registers,
// hopper_backward_values computes dv apart.
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
