// The kernels "store_I" of a GradientSource: they write the entries of a gradient from their sums. Its indices are
// either those of one block of queries and keys, or those of all entries.
#pragma once

#include "backend/cuda/operand_gradients/gradient_prelude.cuh"

extern "C" __global__ void /*{name}*/ store_0 /*{}*/ (const /*{sum_type}*/ float /*{}*/* sums, void* gradient, int q0,
                                                      int rows, int k0, int columns, int block_rows,
                                                      int block_columns) {
  const long long entries = /*{entries}*/ 64LL * rows * columns /*{}*/;
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < entries;
       i += gridDim.x * (long long)blockDim.x) {
    /*{block_indices}*/
    const int c = (int)(i % columns), kv = k0 + c, r = (int)(i / columns % rows), q = q0 + r;
    const long long bh = i / columns / rows;
    const int h = (int)(bh % /*{heads}*/ 2 /*{}*/), b = (int)(bh / /*{heads}*/ 2 /*{}*/);
    /*{}*/
    /*{entry_indices}*/
    long long rest = i;
    /*{index}*/
    const int /*{name}*/ index_0 /*{}*/ = (int)(rest % /*{extent}*/ 3 /*{}*/);
    rest /= /*{extent}*/ 3 /*{}*/;
    /*{}*/
    /*{}*/
    /*{store}*/ store_f32 /*{}*/ (gradient, /*{offset}*/ q + kv + index_0 /*{}*/,
                                  sums ? sum_at(sums, /*{sum}*/ i /*{}*/) : 0.0f);
  }
}
