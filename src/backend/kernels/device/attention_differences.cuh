// attention_differences tabulates the parts of a program that depend on h (and b) and kv_idx - q_idx alone. It has
// every difference that a tile may have, and the attention kernels read it.
#pragma once

#include "backend/kernels/device/attention_tiles.cuh"

/*{read}*/
constexpr int kDifferences = /*{count}*/ 1 /*{}*/;  // that are tabulated
constexpr bool kDifferencesByBatch = /*{by_batch}*/ true /*{}*/, kDifferencesByHead = /*{by_head}*/ true /*{}*/;

// Entries of a table: rows and keys of tiles that lie beyond the last have some too.
SCOREMOD_FUNCTION int difference_pitch(const AttentionArguments& call) {
  return call.query_tiles * kQueries + call.key_tiles * kKeys;
}
SCOREMOD_FUNCTION float* difference_table(const AttentionArguments& call, int number, int b, int h) {
  const int heads = kDifferencesByHead ? call.heads_q : 1;
  const long long head = (long long)(kDifferencesByBatch ? b : 0) * heads + (kDifferencesByHead ? h : 0);
  return call.differences + (head * kDifferences + number) * difference_pitch(call);
}
// The entry of kv == q.
SCOREMOD_FUNCTION int difference_origin(const AttentionArguments& call) { return call.query_tiles * kQueries - 1; }
// Local indices may be those of any rows and keys of tiles.
template <int kNumber>
SCOREMOD_FUNCTION float difference_at(const Arguments& p, int b, int h, int q, int kv) {
  return difference_table(p.call, kNumber, b, h)[kv - q + difference_origin(p.call)];
}
/*{}*/

/*{fill}*/
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
  /*{statements}*/ const float n1 = (float)(kv - q + b + h + offset_b + offset_h + offset_q + offset_kv); /*{}*/
  const float values[kDifferences] = {/*{values}*/ n1 /*{}*/};
  for (int i = 0; i < kDifferences; ++i) difference_table(call, i, b, h)[at] = values[i];
}
/*{}*/
