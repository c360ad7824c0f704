// What dq is made of beside products of matrices: the gradients of a tile's scores, and rows by plain sums.
#pragma once

#include "backend/kernels/device/attention_backward_rows.cuh"

constexpr int kWarpRows = 16 * kRowTiles;
static_assert(kQueries == kWarps * kWarpRows, "a tile of queries is a block's");
static_assert(kKeys % kKeyStep == 0, "a tile of keys is a number of steps");

// What a block takes one after the other: kKeyStep keys.
struct KeySteps {
  TileWalk<false> walk;
  int part;  // of the walk's tile

  SCOREMOD_MEMBER void begin(const AttentionArguments& call, int b, int h, int query_tile) {
    part = kKeys / kKeyStep;
    walk.begin(call, b, h, query_tile);
  }
  SCOREMOD_MEMBER bool next(const AttentionArguments& call, int b, int h) {
    if (++part < kKeys / kKeyStep && first_key() < call.seq_kv) return true;
    part = 0;
    return walk.next(call, b, h);
  }
  SCOREMOD_MEMBER int first_key() const { return walk.tile * kKeys + part * kKeyStep; }
};

// One row by plain sums over its kept keys alone, as forward_row() does it.
SCOREMOD_OUT_OF_LINE void backward_query_row(const Arguments& p, float* gradients, int b, int h, int q) {
  const AttentionArguments& call = p.call;
  const Rows ks = rows_of(call.k, b, h / call.group), to = rows_of(call.dq, b, h);
  int* const kept = (int*)(gradients + kThreads);
  const int keys = keys_of(call, b);
  constexpr int kDims = (kDimQk + kThreads - 1) / kThreads;
  float sums[kDims];
  for (int i = 0; i < kDims; ++i) sums[i] = 0.0f;
  for (int first = 0; first < keys; first += kThreads) {
    Differentiated own{};
    if (first + (int)threadIdx.x < keys) own = element_by_sums(p, b, h, q, first + threadIdx.x);
    block_barrier();
    gradients[threadIdx.x] = own.gradient;
    kept[threadIdx.x] = own.kept;
    block_barrier();
#pragma unroll 1
    for (int j = 0; j < kThreads && first + j < keys; ++j) {
      if (!kept[j]) continue;
#pragma unroll
      for (int i = 0; i < kDims; ++i) {
        const int d = threadIdx.x + i * kThreads;
        if (d < kDimQk) sums[i] = multiply_add(gradients[j], float_of(ks.at(first + j)[d * ks.dim]), sums[i]);
      }
    }
  }
  for (int i = 0; i < kDims; ++i) {
    const int d = threadIdx.x + i * kThreads;
    if (d < kDimQk) store_element(to.at(q) + d * to.dim, sums[i]);
  }
}

// Turns products of q and k, and of d_o and v, into gradients of the scores times the scale, in place of the first.
template <bool kMasked>
SCOREMOD_FUNCTION void differentiate_tile(const Arguments& p, Sums<kRowTiles, kKeyStep>& scores,
                                          const Sums<kRowTiles, kKeyStep>& products,
                                          const float (&terms)[kRowTiles][2][2], int b, int h, int first_query,
                                          int first_key) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
    const RowsStay<kKeyStep> stay(p.call, b, h, first_query + m * 16, first_key);
#pragma unroll
    for (int n = 0; n < kKeyStep / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& x = scores.at[m][n][e];
        x = differentiate<kMasked>(p, x, products.at[m][n][e], stay.at(n, e), terms[m][e / 2][0], terms[m][e / 2][1], b,
                                   h, first_query + m * 16 + e / 2 * 8 + lane / 4,
                                   first_key + n * 8 + lane % 4 * 2 + e % 2)
                .gradient;
      }
  }
}
