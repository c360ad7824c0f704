// MMAs of a warp on tiles: of 16-bit elements with mma.sync, and of fp32 to float32's own rounding by TF32 pairs. Tiles
// and accumulators are those of shared/tiles.cuh.
#pragma once

#include "backend/kernels/shared/tiles.cuh"

// sums += a b^T, where a's rows are the warp's and b has kColumns rows; both are tiles of kDim.
template <int kDim, int kRowTiles, int kColumns>
SCOREMOD_FUNCTION void add_product_of_rows(Sums<kRowTiles, kColumns>& sums, const Half* a, const Half* b) {
  const int lane = threadIdx.x % 32;
  const Half* const a_row = a + lane % 16 * row_length(kDim) + lane / 16 * 8;
  const Half* const b_row = b + (lane % 8 + lane / 16 * 8) * row_length(kDim) + lane / 8 % 2 * 8;
#pragma unroll
  for (int k = 0; k < padded(kDim); k += 16) {
    unsigned left[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) load_matrices(left[m], a_row + m * 16 * row_length(kDim) + k);
#pragma unroll
    for (int n = 0; n < kColumns; n += 16) {
      unsigned right[4];
      load_matrices(right, b_row + n * row_length(kDim) + k);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        multiply_add(sums.at[m][n / 8], left[m], right[0], right[1]);
        multiply_add(sums.at[m][n / 8 + 1], left[m], right[2], right[3]);
      }
    }
  }
}

// sums += w b, where w has kInner columns, rounded to halves, and b is a tile of kInner rows of kDim.
template <int kDim, int kRowTiles, int kInner>
SCOREMOD_FUNCTION void add_product(Sums<kRowTiles, padded(kDim)>& sums, const Sums<kRowTiles, kInner>& w,
                                   const Half* b) {
  const int lane = threadIdx.x % 32;
  const Half* const b_row = b + lane % 16 * row_length(kDim) + lane / 16 * 8;
#pragma unroll
  for (int k = 0; k < kInner; k += 16) {
    unsigned left[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) round_to_left(left[m], w, m, k);
#pragma unroll
    for (int n = 0; n < padded(kDim); n += 16) {
      unsigned right[4];
      load_matrices_transposed(right, b_row + k * row_length(kDim) + n);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        multiply_add(sums.at[m][n / 8], left[m], right[0], right[1]);
        multiply_add(sums.at[m][n / 8 + 1], left[m], right[2], right[3]);
      }
    }
  }
}

// A float32 as the sum of two TF32 numbers, which sm_80's mma.sync multiplies. The first has float32's upper 11 digits,
// rounded. The second has the rest, of which mma.sync reads 11 digits too. A NaN stays one in the second.
struct SplitFloats {
  unsigned large, small;

  SCOREMOD_MEMBER explicit SplitFloats(float x) {
    large = (bits_of(x) + 0x1000u) & 0xffffe000u;
    small = bits_of(x - float_of_bits(large));
  }
};
template <int kCount>
struct SplitMatrix {
  unsigned large[kCount], small[kCount];

  SCOREMOD_MEMBER void set(int i, float x) {
    const SplitFloats split(x);
    large[i] = split.large;
    small[i] = split.small;
  }
};

// sum += a b, 16 x 8 by 8 x 8. Tensor cores truncate towards zero. The small products therefore come first, and a
// rounding addition adds the total. The product of both small parts is below float32's rounding and is left out.
SCOREMOD_FUNCTION void multiply_add(float (&sum)[4], const SplitMatrix<4>& a, const SplitMatrix<2>& b) {
  float product[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  multiply_add_upper(product, a.small, b.large[0], b.large[1]);
  multiply_add_upper(product, a.large, b.small[0], b.small[1]);
  multiply_add_upper(product, a.large, b.large[0], b.large[1]);
#pragma unroll
  for (int e = 0; e < 4; ++e) sum[e] += product[e];
}

// As for 16-bit elements. A matrix of ldmatrix has rows of 16 bytes: four floats.
template <int kDim, int kRowTiles, int kColumns>
SCOREMOD_FUNCTION void add_product_of_rows(Sums<kRowTiles, kColumns>& sums, const float* a, const float* b) {
  const int lane = threadIdx.x % 32;
  constexpr int kAtOnce = kColumns < 16 ? kColumns : 16;
  const float* const a_row = a + lane % 16 * row_length(kDim) + lane / 16 * 4;
  const float* const b_row = b + (lane % 8 + lane / 16 * 8 % kAtOnce) * row_length(kDim) + lane / 8 % 2 * 4;
#pragma unroll 2
  for (int k = 0; k < padded(kDim); k += 8) {
    SplitMatrix<4> left[kRowTiles];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      unsigned bits[4];
      load_matrices(bits, (const Half*)(a_row + m * 16 * row_length(kDim) + k));
#pragma unroll
      for (int i = 0; i < 4; ++i) left[m].set(i, float_of_bits(bits[i]));
    }
#pragma unroll
    for (int n = 0; n < kColumns; n += kAtOnce) {
      unsigned bits[4];
      load_matrices(bits, (const Half*)(b_row + n * row_length(kDim) + k));
#pragma unroll
      for (int i = 0; i < kAtOnce / 8; ++i) {
        SplitMatrix<2> right;
        right.set(0, float_of_bits(bits[2 * i]));
        right.set(1, float_of_bits(bits[2 * i + 1]));
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) multiply_add(sums.at[m][n / 8 + i], left[m], right);
      }
    }
  }
}

// The order of what is summed over is free: a thread's two neighbouring columns of w are columns l % 4 and l % 4 + 4.
template <int kDim, int kRowTiles, int kInner>
SCOREMOD_FUNCTION void add_product(Sums<kRowTiles, padded(kDim)>& sums, const Sums<kRowTiles, kInner>& w,
                                   const float* b) {
  const int lane = threadIdx.x % 32;
  const float* const b_column = b + lane % 4 * 2 * row_length(kDim) + lane / 4;
#pragma unroll
  for (int k = 0; k < kInner; k += 8) {
    SplitMatrix<4> left[kRowTiles];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int e = 0; e < 4; ++e) left[m].set(e / 2 + e % 2 * 2, w.at[m][k / 8][e]);
#pragma unroll
    for (int n = 0; n < padded(kDim); n += 8) {
      SplitMatrix<2> right;
      right.set(0, b_column[k * row_length(kDim) + n]);
      right.set(1, b_column[(k + 1) * row_length(kDim) + n]);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) multiply_add(sums.at[m][n / 8], left[m], right);
    }
  }
}
