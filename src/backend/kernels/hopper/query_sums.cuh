// The fp32 workspace in which hopper_backward_fused adds dq up, in boxes of 64 queries by 64 dims, of whole tiles of
// queries. A box has a warpgroup's accumulators in the order of its threads, so that neighbouring threads add to
// neighbouring 16 bytes. Column 8 n of a thread is its nth four floats.
#pragma once

#include "backend/kernels/hopper/tiles.cuh"
#include "backend/kernels/shared/row_terms.cuh"

constexpr int kBoxSums = 64 * 64;

// The number of the box of 64 dims from 64 * block on, and of 64 queries from q on.
SCOREMOD_FUNCTION int box_number(const AttentionArguments& call, int b, int h, int q, int block) {
  const int rows = call.query_tiles * (kQueries / 64);
  return ((b * call.heads_q + h) * rows + q / 64) * blocks_of(kDimQk) + block;
}
// The thread's first sums of a box; those of 8 columns further are kNextSums on.
constexpr int kNextSums = kGroup * 4;
SCOREMOD_FUNCTION float* own_sums(const AttentionArguments& call, int box) {
  return call.query_sums + (long long)box * kBoxSums + threadIdx.x % kGroup * 4;
}
