// MMAs of a warp on tiles of FP8 keys and values, which become f16 between shared memory and the MMA: f16 has every FP8
// number. Under bf16 queries, rows of q become f16 too, times a power of two, so that one conversion serves two
// numbers. Scales of the keys are not in the products: RowFactors, or, with kRowScales, factors of scores and of
// weights.
#pragma once

#include "backend/kernels/shared/products.cuh"
#include "backend/kernels/split_kv/storage.cuh"

// Bytes from one row of an FP8 tile to the next.
SCOREMOD_FUNCTION constexpr int float8_row(int dim) { return KeyTile{1, dim, 1}.row_bytes; }

// cvt.rn.f16x2.e4m3x2 or cvt.rn.f16x2.e5m2x2, where the device has them: the f16 numbers of the lower two FP8 numbers,
// the first in the lower bits of both pairs.
SCOREMOD_FUNCTION unsigned f16_of(unsigned two) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  unsigned halves;
  if (kKeyKind == kE4M3Keys)
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((unsigned short)two));
  else
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"((unsigned short)two));
  return halves;
#else
  return f16_pair_of(float_of(Float8{(unsigned char)(two & 0xffu)}),
                     float_of(Float8{(unsigned char)(two >> 8 & 0xffu)}));
#endif
}

// A lane reads kLaneDims neighbouring dims of a key at once, which are two pairs of an MMA's sixteen in each of kSteps
// MMAs. In what order dims are added up is free: prepare_queries() puts q's in the same one.
constexpr int kLaneDims = padded(kDimQk) % 64 == 0 ? 16 : padded(kDimQk) % 32 == 0 ? 8 : 4;
constexpr int kGroupDims = 4 * kLaneDims, kSteps = kLaneDims / 4;

// Sixteen, eight or four bytes of a row, which one load takes.
struct alignas(kLaneDims) LaneDims {
  unsigned words[kSteps];
};

// add_product_of_rows() of shared/products.cuh, where a is prepared and b is a tile of FP8 keys.
template <int kDim, int kRowTiles, int kColumns>
SCOREMOD_FUNCTION void add_product_of_rows(Sums<kRowTiles, kColumns>& sums, const Half* a, const Float8* b) {
  const int lane = threadIdx.x % 32;
  const Half* const a_row = a + lane % 16 * row_length(kDim) + lane / 16 * 8;
  const Float8* const b_row = b + lane / 4 * float8_row(kDim) + lane % 4 * kLaneDims;
#pragma unroll
  for (int group = 0; group < padded(kDim); group += kGroupDims) {
    LaneDims keys[kColumns / 8];
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) keys[n] = *(const LaneDims*)(b_row + n * 8 * float8_row(kDim) + group);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      unsigned left[kRowTiles][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) load_matrices(left[m], a_row + m * 16 * row_length(kDim) + group + step * 16);
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
        const unsigned low = f16_of(keys[n].words[step]), high = f16_of(keys[n].words[step] >> 16);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) multiply_add<false>(sums.at[m][n], left[m], low, high);
      }
    }
  }
}

// Weights are rounded to f16, too: they are at most 2^kRescaleThreshold. A weight times its value's scale may be any
// number.
constexpr bool kBf16Weights = kBf16 && kRowScales;
SCOREMOD_FUNCTION unsigned value_halves(unsigned two) {
  const unsigned halves = f16_of(two);
  return kBf16Weights ? bf16_pair_of(load_f16(&halves, 0), load_f16(&halves, 1)) : halves;
}

// add_product() of shared/products.cuh, where b is a tile of FP8 values. ldmatrix takes two neighbouring numbers for
// one of 16 bits: a thread gets dims 2 c and 2 c + 1 of its rows, where c is its column. So column c of the sums is dim
// 2 c in one matrix and 2 c + 1 in the next: dim_of_column().
template <int kDim, int kRowTiles, int kInner>
SCOREMOD_FUNCTION void add_product(Sums<kRowTiles, padded(kDim)>& sums, const Sums<kRowTiles, kInner>& w,
                                   const Float8* b) {
  const int lane = threadIdx.x % 32;
  constexpr int kDims = padded(kDim);
  constexpr unsigned kFirst = 0x4420, kSecond = 0x4431;  // bytes of two rows
  // Matrices 0 and 1 are both halves of 16 rows, at 16 dims; 2 and 3 the same at the next 16, if there are.
  const Float8* const b_row = b + lane % 16 * float8_row(kDim);
#pragma unroll
  for (int k = 0; k < kInner; k += 16) {
    unsigned left[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) round_to_left<kRowTiles, kInner, kBf16Weights>(left[m], w, m, k);
#pragma unroll
    for (int n = 0; n < kDims; n += 32) {
      const int last = n + 16 < kDims ? 16 : 0;
      unsigned rows[4];
      load_matrices_transposed(rows, (const Half*)(b_row + k * float8_row(kDim) + n + lane / 16 * last));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (n + 16 * i >= kDims) continue;
        unsigned first[2], second[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          first[half] = value_halves(bytes_of(rows[2 * i + half], 0, kFirst));
          second[half] = value_halves(bytes_of(rows[2 * i + half], 0, kSecond));
        }
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          multiply_add<kBf16Weights>(sums.at[m][n / 8 + 2 * i], left[m], first[0], first[1]);
          multiply_add<kBf16Weights>(sums.at[m][n / 8 + 2 * i + 1], left[m], second[0], second[1]);
        }
      }
    }
  }
}

// A row of q has its factor behind its dims, where a tile's row has room that no MMA reads.
SCOREMOD_FUNCTION float* factor_of_row(Half* row) { return (float*)(row + padded(kDimQk)); }

// The power of two that brings a bf16 row, whose largest absolute value has these bits, up to f16's largest numbers.
// Then f16 has all digits of numbers down to 2^-31 of the largest one, and of others an error of 2^-39 of it. A row
// that is not finite stays what it is.
SCOREMOD_FUNCTION float scale_of_row(unsigned largest) {
  constexpr int kBias = 127, kTop = 14, kGreatest = 126;
  const int exponent = (int)(largest >> 23);
  if (largest == 0 || exponent == 255) return 1.0f;
  const int shift = kTop + kBias - exponent;
  return float_of_bits((unsigned)((shift < kGreatest ? shift : kGreatest) + kBias) << 23);
}

// Puts the dims of each row of q in the order of add_product_of_rows(). bf16 numbers become f16, times scale_of_row(),
// whose reciprocal is the row's factor. By kCount threads, of which four have a row.
template <int kCount>
SCOREMOD_FUNCTION void prepare_queries(Half* q, int thread) {
  constexpr int kDims = padded(kDimQk), kPairs = kLaneDims / 2;
  const int lane = thread % 4;
#pragma unroll 1
  for (int row = thread / 4; row < kQueries; row += kCount / 4) {
    Half* const own = q + row * row_length(kDimQk);
    float scale = 1.0f;
    if (kBf16) {
      float largest = 0.0f;
#pragma unroll 4
      for (int dim = lane * 2; dim < kDims; dim += 8) {
        const unsigned pair = *(const unsigned*)(own + dim) & 0x7fff7fffu;
        largest = fmaxf(largest, fmaxf(float_of_bits(pair << 16), float_of_bits(pair & 0xffff0000u)));
        // fmaxf() passes over what is not a number.
        if ((pair & 0x7fffu) > 0x7f80u || pair >> 16 > 0x7f80u) largest = infinity();
      }
      largest = fmaxf(largest, exchange(largest, 1));
      largest = fmaxf(largest, exchange(largest, 2));
      scale = scale_of_row(bits_of(largest));
      if (lane == 0) *factor_of_row(own) = 1.0f / scale;
    }
#pragma unroll 1
    for (int group = 0; group < kDims; group += kGroupDims) {
      unsigned pairs[kPairs];
#pragma unroll
      for (int i = 0; i < kPairs; ++i) pairs[i] = *(const unsigned*)(own + group + lane * kLaneDims + i * 2);
      ballot(true);  // all lanes have read the group
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        if (kBf16)
          pairs[i] = f16_pair_of(float_of_bits(pairs[i] << 16) * scale, float_of_bits(pairs[i] & 0xffff0000u) * scale);
        *(unsigned*)(own + group + i / 2 * 16 + i % 2 * 8 + lane * 2) = pairs[i];
      }
    }
  }
}

// The factors of a thread's rows of scores.
struct RowFactors {
  float of[kRowTiles][2];

  // `rows` are the warp's rows of q; `of_keys` is a factor of all.
  SCOREMOD_MEMBER void read(Half* rows, float of_keys) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Half* const row = rows + (m * 16 + half * 8 + threadIdx.x % 32 / 4) * row_length(kDimQk);
        of[m][half] = kBf16 ? *factor_of_row(row) * of_keys : of_keys;
      }
  }
  template <int kColumns>
  SCOREMOD_MEMBER void multiply_rows(Sums<kRowTiles, kColumns>& sums) const {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) sums.at[m][n][e] *= of[m][e / 2];
  }
};
