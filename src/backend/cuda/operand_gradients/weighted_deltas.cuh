// The kernel "weighted_deltas" of a GradientSource replaces row_deltas if few rows or keys are summed over. The
// rounding of o is much of the error of such a sum.
#pragma once

#include "backend/cuda/operand_gradients/gradient_prelude.cuh"

// deltas[row] becomes the mean of the products by their weights, over this block of keys and those before it. `weights`
// has the sums of these weights; both begin as zeros. One warp has each row; the grid is rows, 1, heads. The division
// by the weights' sum removes the rounding of the LSE, which is a factor of all of a row's weights.
extern "C" __global__ void weighted_deltas(int offset_b, int offset_h, int offset_q, int offset_kv, const float* scores,
                                           const float* products, const float* lse, float* deltas, float* weights,
                                           int b, int h0, int q0, int rows, int first_key, int columns, int block_rows,
                                           int block_columns /*{parameters}*/ /*{}*/) {
  const int lane = threadIdx.x % 32, r = blockIdx.x * /*{rows_of_block}*/ 8 /*{}*/ + threadIdx.x / 32;
  if (r >= rows) return;
  const int z = blockIdx.z, h = h0 + z, q = q0 + r;
  const long long row = (b * /*{heads}*/ 4LL /*{}*/ + h) * /*{seq_q}*/ 512 /*{}*/ + q;
  const long long first = ((long long)z * block_rows + r) * block_columns;
  const float row_lse = lse[row];
  float sum = 0.0f, weight = 0.0f;
  for (int column = lane; column < columns; column += 32) {
    const int kv = first_key + column;
    const float score = scores[first + column];
    /*{forward}*/ const float value = score; /*{}*/
    const bool kept = /*{keep}*/ kv <= q /*{}*/ && /*{value}*/ value /*{}*/ != -float_of_bits(0x7f800000u) &&
                      row_lse != -float_of_bits(0x7f800000u);
    if (!kept) continue;
    const float own = expf(/*{value}*/ value /*{}*/ - row_lse);
    sum += own * products[first + column];
    weight += own;
  }
  sum = warp_sum(sum);
  weight = warp_sum(weight);
  if (lane != 0) return;
  const float before = weights[row], all = before + weight;
  if (all != 0.0f) deltas[row] = (deltas[row] * before + sum) / all;
  weights[row] = all;
}
