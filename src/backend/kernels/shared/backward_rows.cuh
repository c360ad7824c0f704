// attention_backward_rows: the terms of each query's row, one warp for each. Where kFused it begins dq's sums, of the
// rows of all tiles.
#pragma once

#include "backend/kernels/shared/row_terms.cuh"

SCOREMOD_KERNEL(128, 1) attention_backward_rows(SCOREMOD_ARGUMENT p) {
  const AttentionArguments& call = p.call;
  const int lane = threadIdx.x % 32;
  const long long row = (long long)blockIdx.x * 4 + threadIdx.x / 32;
  if (kFused && lane < kSumColumns / 4) {
    alignas(16) const float zeros[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    copy_word(call.query_sums + row * kSumColumns + lane * 4, zeros);
  }
  if (row >= (long long)call.batch * call.heads_q * call.seq_q) return;
  const int q = (int)(row % call.seq_q), head = (int)(row / call.seq_q);
  const int b = head / call.heads_q, h = head % call.heads_q;
  float* const at = call.rows + row_place(call, b, h, q);
  if (kRaggedQueries && q >= queries_of(call, b)) {
    if (lane != 0) return;
    at[0] = infinity();
    at[1] = 0.0f;
    return;
  }
  const RowsOf<Output> o = rows_of<Output>(call.o, b, h), d_o = rows_of<Output>(call.d_o, b, h);
  float sum = 0.0f;
  if (kSameType<Output, Half> && o.aligned && d_o.aligned) {
    // Sixteen bytes of each.
    if (lane < kDimV / 8) {
      alignas(16) Half o_word[8], d_o_word[8];
      copy_word(o_word, o.at(q) + lane * 8);
      copy_word(d_o_word, d_o.at(q) + lane * 8);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum = multiply_add(float_of(o_word[i]), float_of(d_o_word[i]), sum);
    }
  } else {
    // Products take d_o as tiles hold it. Where one key has all weight, a delta of another d_o would be left over.
    for (int d = lane; d < kDimV; d += 32)
      sum = multiply_add(float_of(o.at(q)[d * o.dim]), in_tile(d_o.at(q)[d * d_o.dim]), sum);
  }
  for (int distance = 16; distance > 0; distance /= 2) sum += exchange(sum, distance);
  if (lane != 0) return;
  const float lse = call.lse[kRaggedQueries ? row_number(call, b, h, q) : row];
  at[0] = lse == -infinity() ? infinity() : kFloatTiles ? lse : lse * kLog2E;
  at[1] = sum;
}
