// The kernel "row_deltas" of a GradientSource: deltas[row] = sum over d of o d_o, one warp for each row.
#pragma once

#include "backend/cuda/operand_gradients/gradient_prelude.cuh"

extern "C" __global__ void row_deltas(const void* o, const void* d_o, float* deltas) {
  const long long row = blockIdx.x * /*{rows_of_block}*/ 8LL /*{}*/ + threadIdx.x / 32;
  if (row >= /*{rows}*/ 64LL /*{}*/) return;
  const long long first =
      /*{first}*/ (row / 32LL) * 512LL + (row / 16LL % 2LL) * 256LL + (row % 16LL) * 16LL /*{}*/;
  const long long upstream =
      /*{upstream}*/ (row / 32LL) * 512LL + (row / 16LL % 2LL) * 256LL + (row % 16LL) * 16LL /*{}*/;
  float sum = 0.0f;
  for (int d = threadIdx.x % 32; d < /*{dim}*/ 16 /*{}*/; d += 32)
    sum += /*{load}*/ load_f32 /*{}*/ (o, first + d * /*{dim_stride}*/ 1LL /*{}*/) *
           /*{load}*/ load_f32 /*{}*/ (d_o, upstream + d * /*{upstream_stride}*/ 1LL /*{}*/);
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) deltas[row] = sum;
}
