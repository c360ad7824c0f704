// Fills the tables that shared/position_tables.cuh reads.
#pragma once

#include "backend/kernels/shared/position_tables.cuh"

// One thread for each difference of each head.
SCOREMOD_KERNEL(128, 1) attention_differences(SCOREMOD_ARGUMENT p) {
  const AttentionArguments& call = p.call;
  const int pitch = difference_pitch(call), heads = kDifferencesByHead ? call.heads_q : 1;
  const long long number = (long long)blockIdx.x * 128 + threadIdx.x, head = number / pitch;
  if (head >= (long long)heads * (kDifferencesByBatch ? call.batch : 1)) return;
  const int b = (int)(head / heads), h = (int)(head % heads), at = (int)(number % pitch);
  const int difference = at - difference_origin(call);
  const int q = difference < 0 ? -difference : 0, kv = difference > 0 ? difference : 0;
  const int offset_b = index_offset(call.offset_b), offset_h = index_offset(call.offset_h),
            offset_q = index_offset(call.offset_q), offset_kv = index_offset(call.offset_kv);
  /*{position_statements}*/ const float n1 =
      (float)(kv - q + b + h + offset_b + offset_h + offset_q + offset_kv); /*{}*/
  const float values[kDifferences] = {/*{position_values}*/ n1 /*{}*/};
  for (int i = 0; i < kDifferences; ++i) position_table(call, i, b, h)[at] = values[i];
}
