// Functions of all kernels of a GradientSource.
#pragma once

#include "backend/cuda/text/exact_sum.cuh"

SCOREMOD_FUNCTION void store_f32(void* data, long long i, float value) { ((float*)data)[i] = value; }
// cvt.rn.f16.f32.
SCOREMOD_FUNCTION void store_f16(void* data, long long i, float value) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  ((unsigned short*)data)[i] = bits;
}
SCOREMOD_FUNCTION void store_bf16(void* data, long long i, float value) {
  const unsigned bits = __float_as_uint(value);
  const unsigned rounded = is_nan(value) ? bits | 0x400000u : bits + 0x7fffu + ((bits >> 16) & 1u);
  ((unsigned short*)data)[i] = (unsigned short)(rounded >> 16);
}
// The sum over the lanes of a warp, by shfl.sync.bfly.
SCOREMOD_FUNCTION float warp_sum(float value) {
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}
// Adds a word of sums to others: a sum of float32, or a word of an exact sum.
SCOREMOD_FUNCTION void merge_word(float* to, const float* from, int i) {
  if (from[i] != 0.0f) atomicAdd(to + i, from[i]);
}
SCOREMOD_FUNCTION void merge_word(long long* to, const long long* from, int i) {
  if (i % kSumWords == kDigits)
    set_bits((unsigned long long*)to + i, from[i]);
  else if (from[i] != 0)
    add_word((unsigned long long*)to + i, from[i]);
}
// Called by all lanes of a warp, which compare their entries by match.all.sync. Neighbours often go to one entry, where
// adding one after the other would be slow.
template <class Sum>
SCOREMOD_FUNCTION void add_run(Sum* sums, int entry, float value) {
  int same = 0;
  __match_all_sync(0xffffffffu, entry, &same);
  if (same) {
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0 && value != 0.0f) add_to(sums, entry, value);
  } else if (value != 0.0f) {
    add_to(sums, entry, value);
  }
}
// Called by all lanes of a warp. A lane first gathers its additions to one entry over consecutive queries.
struct Run {
  int entry;
  float sum;
};
template <class Sum>
SCOREMOD_FUNCTION void add_to_table(Sum* sums, Run& run, int entry, float value) {
  const bool moves = value != 0.0f && entry != run.entry;
  if (__any_sync(0xffffffffu, moves)) {
    add_run(sums, run.entry, run.sum);
    if (moves) run.entry = entry;
    run.sum = 0.0f;
  }
  run.sum += value;
}
