// attention_backward_rows: what the backward needs of each query's row beside its tensors, one warp for each: the LSE,
// +inf where no key was kept, and the sum of o d_o.
#pragma once

#include "backend/kernels/device/attention_program.cuh"

SCOREMOD_KERNEL(128, 1) attention_backward_rows(SCOREMOD_ARGUMENT p) {
  const AttentionArguments& call = p.call;
  const int lane = threadIdx.x % 32;
  const long long row = (long long)blockIdx.x * 4 + threadIdx.x / 32;
  if (row >= (long long)call.batch * call.heads_q * call.seq_q) return;
  const int q = (int)(row % call.seq_q), head = (int)(row / call.seq_q);
  const Rows o = rows_of(call.o, head / call.heads_q, head % call.heads_q);
  const Rows d_o = rows_of(call.d_o, head / call.heads_q, head % call.heads_q);
  float sum = 0.0f;
  for (int d = lane; d < kDimV; d += 32)
    sum = multiply_add(float_of(o.data[q * o.row + d * o.dim]), float_of(d_o.data[q * d_o.row + d * d_o.dim]), sum);
  for (int distance = 16; distance > 0; distance /= 2) sum += exchange(sum, distance);
  if (lane != 0) return;
  const float lse = call.lse[row];
  call.rows[2 * row] = lse == -infinity() ? infinity() : lse;
  call.rows[2 * row + 1] = sum;
}

// Of the row of a query in `rows`.
SCOREMOD_FUNCTION const float* row_terms(const AttentionArguments& call, int b, int h, int q) {
  return call.rows + 2 * (((long long)b * call.heads_q + h) * call.seq_q + q);
}

// The products of one element by plain sums.
SCOREMOD_FUNCTION float dot(const Rows& x, int x_row, const Rows& y, int y_row, int dims) {
  float sum = 0.0f;
  for (int d = 0; d < dims; ++d)
    sum = multiply_add(float_of(x.data[x_row * x.row + d * x.dim]), float_of(y.data[y_row * y.row + d * y.dim]), sum);
  return sum;
}

// The weight of one key for one query and the gradient of their score, times the scale as q and k see it.
SCOREMOD_FUNCTION Differentiated element_by_sums(const Arguments& p, int b, int h, int q, int kv) {
  const AttentionArguments& call = p.call;
  const float score = dot(rows_of(call.q, b, h), q, rows_of(call.k, b, h / call.group), kv, kDimQk) * call.scale;
  const float product = dot(rows_of(call.d_o, b, h), q, rows_of(call.v, b, h / call.group), kv, kDimV);
  const float* const terms = row_terms(call, b, h, q);
  return differentiate<true>(p, score, product, terms[0], terms[1], b, h, q, kv);
}
