// MMAs of a warp on tiles of FP8 keys and values, which become halves between shared memory and the MMA. Halves have
// every FP8 number. Scales are not in the products: key_factor() and value_factor() of shared/program.cuh.
#pragma once

#include "backend/kernels/shared/products.cuh"
#include "backend/kernels/split_kv/storage.cuh"

// Bytes from one row of an FP8 tile to the next.
SCOREMOD_FUNCTION constexpr int float8_row(int dim) { return KeyTile{1, dim, 1}.row_bytes; }

// The halves of two FP8 numbers, the first in the lower bits of both pairs.
SCOREMOD_FUNCTION unsigned halves_of(unsigned two) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  unsigned halves;
  if (kKeyKind == kE4M3Keys)
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((unsigned short)two));
  else
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"((unsigned short)two));
  return kBf16 ? bf16_pair_of(load_f16(&halves, 0), load_f16(&halves, 1)) : halves;
#else
  return pair_of(float_of(Float8{(unsigned char)(two & 0xffu)}), float_of(Float8{(unsigned char)(two >> 8 & 0xffu)}));
#endif
}

// add_product_of_rows() of shared/products.cuh, where b is a tile of FP8 keys.
template <int kDim, int kRowTiles, int kColumns>
SCOREMOD_FUNCTION void add_product_of_rows(Sums<kRowTiles, kColumns>& sums, const Half* a, const Float8* b) {
  const int lane = threadIdx.x % 32;
  const Half* const a_row = a + lane % 16 * row_length(kDim) + lane / 16 * 8;
  const Float8* const b_row = b + lane / 4 * float8_row(kDim) + lane % 4 * 2;
#pragma unroll
  for (int k = 0; k < padded(kDim); k += 16) {
    unsigned left[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) load_matrices(left[m], a_row + m * 16 * row_length(kDim) + k);
#pragma unroll
    for (int n = 0; n < kColumns; n += 8) {
      const Float8* const at = b_row + n * float8_row(kDim) + k;
      const unsigned low = halves_of(*(const unsigned short*)at), high = halves_of(*(const unsigned short*)(at + 8));
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) multiply_add(sums.at[m][n / 8], left[m], low, high);
    }
  }
}

// The first numbers, and the second ones, of two rows with two neighbouring FP8 numbers each, as halves.
SCOREMOD_FUNCTION unsigned first_halves(unsigned two_rows) {
  return halves_of((two_rows & 0xffu) | (two_rows >> 8 & 0xff00u));
}
SCOREMOD_FUNCTION unsigned second_halves(unsigned two_rows) {
  return halves_of((two_rows >> 8 & 0xffu) | (two_rows >> 16 & 0xff00u));
}

// add_product() of shared/products.cuh, where b is a tile of FP8 values. ldmatrix takes two neighbouring numbers for
// one of 16 bits: a thread gets dims 2 c and 2 c + 1 of its rows, where c is its column. So column c of the sums is dim
// 2 c in one matrix and 2 c + 1 in the next: dim_of_column().
template <int kDim, int kRowTiles, int kInner>
SCOREMOD_FUNCTION void add_product(Sums<kRowTiles, padded(kDim)>& sums, const Sums<kRowTiles, kInner>& w,
                                   const Float8* b) {
  const int lane = threadIdx.x % 32;
  constexpr int kDims = padded(kDim);
  // Matrices 0 and 1 are both halves of 16 rows, at 16 dims; 2 and 3 the same at the next 16, if there are.
  const Float8* const b_row = b + lane % 16 * float8_row(kDim);
#pragma unroll
  for (int k = 0; k < kInner; k += 16) {
    unsigned left[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      const auto& low = w.at[m][k / 8];
      const auto& high = w.at[m][k / 8 + 1];
      left[m][0] = pair_of(low[0], low[1]);
      left[m][1] = pair_of(low[2], low[3]);
      left[m][2] = pair_of(high[0], high[1]);
      left[m][3] = pair_of(high[2], high[3]);
    }
#pragma unroll
    for (int n = 0; n < kDims; n += 32) {
      const int last = n + 16 < kDims ? 16 : 0;
      unsigned rows[4];
      load_matrices_transposed(rows, (const Half*)(b_row + k * float8_row(kDim) + n + lane / 16 * last));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (n + 16 * i >= kDims) continue;
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          float(&first)[4] = sums.at[m][n / 8 + 2 * i];
          float(&second)[4] = sums.at[m][n / 8 + 2 * i + 1];
          multiply_add(first, left[m], first_halves(rows[2 * i]), first_halves(rows[2 * i + 1]));
          multiply_add(second, left[m], second_halves(rows[2 * i]), second_halves(rows[2 * i + 1]));
        }
      }
    }
  }
}
