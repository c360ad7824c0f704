// Tiles of FP8 numbers in shared memory, and the WGMMAs that read them. A step of 32 numbers is as many bytes as one
// of 16 halves, so that the views of hopper/primitives.cuh serve both.
#pragma once

#include "backend/kernels/float8/primitives.cuh"
#include "backend/kernels/float8/storage.cuh"
#include "backend/kernels/hopper/tiles.cuh"

constexpr int kRowBytes = 128;  // of a block of a tile
static_assert(sizeof(Float8) == 1, "as the tiles have it");

SCOREMOD_FUNCTION unsigned float8_view(const Float8* tile, int rows) { return tile_view((const Half*)tile, rows); }

// Issues the TMA loads of a tile: kTileRows rows from `row` on, and kDim numbers of each from `dim` on. It completes a
// phase of `full` with one arrival. One thread calls it.
template <int kTileRows, int kDim>
SCOREMOD_FUNCTION void load_float8_tile(Float8* tile, const TensorMap& map, Barrier* full, int dim, int row, int h,
                                        int b) {
  constexpr SwizzledTile kTile{kTileRows, kDim, 1};
  arrive_and_expect(full, kTile.bytes);
#pragma unroll
  for (int block = 0; block < kTile.blocks; ++block)
#pragma unroll
    for (int i = 0; i < kTileRows; i += kBoxRows)
      tma_load(tile + (block * kTileRows + i) * kRowBytes, &map, full, dim + block * kRowBytes, row + i, h, b);
}

// The address of a number in the 128-byte swizzle.
template <int kTileRows>
SCOREMOD_FUNCTION Float8* number_of_tile(Float8* tile, int row, int dim) {
  const int word = dim % kRowBytes / 16 ^ row % 8;
  return tile + (dim / kRowBytes * kTileRows + row) * kRowBytes + word * 16 + dim % 16;
}

// fill_tile() of rows of q or k: by TMA, or number by number if a row is not aligned. All producers call it. Rows from
// `end` on are zeros.
template <int kTileRows, int kDim>
SCOREMOD_FUNCTION void fill_float8_tile(Float8* tile, const TensorArgument& tensor, const TensorMap& map, Barrier* full,
                                        int b, int h, int first, int end) {
  const int thread = threadIdx.x - kThreads;
  if (tensor.aligned) {
    if (thread == 0) load_float8_tile<kTileRows, kDim>(tile, map, full, 0, first, h, b);
    return;
  }
  const RowsOf<Float8> from = rows_of<Float8>(tensor, b, h);
#pragma unroll 1
  for (int i = thread; i < kTileRows * kDim; i += kGroup) {
    const int row = i / kDim, dim = i % kDim;
    *number_of_tile<kTileRows>(tile, row, dim) =
        first + row < end ? from.at(first + row)[dim * from.dim] : Float8{(unsigned char)0};
  }
  fence_proxy_async();
  meet(kProducerBarrier, kGroup);
  if (thread == 0) arrive(full);
}

// Issues the WGMMAs of sums = a b^T. The warpgroup has 64 rows of kRowsA of a, and b has kColumns rows; both have kDim.
template <int kDim, int kRowsA, int kColumns>
SCOREMOD_FUNCTION void issue_float8_abt(Sums<1, kColumns>& sums, unsigned a, unsigned b) {
#pragma unroll
  for (int k = 0; k < kDim; k += 32)
    Float8Product<kColumns>::of_rows(sums.at[0], moved_by(a, k / kRowBytes * kRowsA * kRowBytes + k % kRowBytes),
                                     moved_by(b, k / kRowBytes * kColumns * kRowBytes + k % kRowBytes), k != 0);
}

// Issues the WGMMAs of sums = w b, with w in registers and kDim rows of kInner of b^T in shared memory, in a tile of
// kTileRows.
template <int kDim, int kInner, int kTileRows>
SCOREMOD_FUNCTION void issue_float8_ab(Sums<1, kDim>& sums, const unsigned (&w)[kInner / 32][4], unsigned b) {
#pragma unroll
  for (int k = 0; k < kInner; k += 32)
    Float8Product<kDim>::of_registers(sums.at[0], w[k / 32],
                                      moved_by(b, k / kRowBytes * kTileRows * kRowBytes + k % kRowBytes), k != 0);
}

// The key, of 16 neighbours, at a position of rows of v^T. Of these keys' scores in a row, a thread has four: two each
// of both blocks of eight. They take four neighbouring positions, as a left operand has them.
SCOREMOD_FUNCTION constexpr int key_of_position(int position) {
  return position / 4 * 2 + position % 2 + position % 4 / 2 * 8;
}

// Rounds accumulators to e4m3, as the left operand of a WGMMA whose right one has its rows by key_of_position().
template <int kInner>
SCOREMOD_FUNCTION void round_to_8bit(unsigned (&w)[kInner / 32][4], const Sums<1, kInner>& sums) {
#pragma unroll
  for (int k = 0; k < kInner / 32; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto& low = sums.at[0][4 * k + i / 2 * 2];
      const auto& high = sums.at[0][4 * k + i / 2 * 2 + 1];
      const int e = i % 2 * 2;
      w[k][i] = e4m3_quad_of(low[e], low[e + 1], high[e], high[e + 1]);
    }
}
