// Tiles of q, k, v and d_o in shared memory, products of them, and which tiles a mask leaves.
#pragma once

#include "backend/kernels/device/attention_primitives.cuh"

struct Arguments {
  AttentionArguments call;
  OperandArgument operands[kOperands];
};

constexpr int kThreads = kWarps * 32;
constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

SCOREMOD_FUNCTION float infinity() { return float_of_bits(0x7f800000u); }

SCOREMOD_FUNCTION constexpr int padded(int dim) { return (dim + 15) / 16 * 16; }
// Halves from one row of a tile to the next: an odd number of 16-byte words, so that eight rows at one column lie in
// different banks.
SCOREMOD_FUNCTION constexpr int row_length(int dim) { return padded(dim) + 8; }

// The rows of one batch and head of a tensor.
struct Rows {
  Half* data;
  long long row, dim;
  bool aligned;
};

SCOREMOD_FUNCTION Rows rows_of(const TensorArgument& tensor, int b, int h) {
  return {(Half*)tensor.data + b * tensor.batch + h * tensor.head, tensor.row, tensor.dim, tensor.aligned != 0};
}

// Rows first, first + 1, ...; those from `end` on are zeros, and so are the dims that pad a row. By kLoaders threads,
// of which the calling one is `thread`. Complete after wait_for_copies() and a barrier.
template <int kTileRows, int kDim, int kLoaders = kThreads>
SCOREMOD_FUNCTION void load_tile(Half* tile, const Rows& from, int first, int end, int thread = threadIdx.x) {
  if (from.aligned) {
    constexpr int kWords = padded(kDim) / 8;
#pragma unroll 2
    for (int i = thread; i < kTileRows * kWords; i += kLoaders) {
      const int row = i / kWords, dim = i % kWords * 8;
      const bool there = first + row < end && dim < kDim;
      copy_ahead<16>(tile + row * row_length(kDim) + dim,
                     there ? from.data + (first + row) * from.row + dim : from.data, there ? 16 : 0);
    }
  } else {
#pragma unroll 1
    for (int i = thread; i < kTileRows * padded(kDim); i += kLoaders) {
      const int row = i / padded(kDim), dim = i % padded(kDim);
      const bool there = first + row < end && dim < kDim;
      tile[row * row_length(kDim) + dim] = there ? from.data[(first + row) * from.row + dim * from.dim] : (Half)0;
    }
  }
}

// Sums of kRowTiles times 16 rows by kColumns, over a warp's threads as multiply_add() has them.
template <int kRowTiles, int kColumns>
struct Sums {
  float at[kRowTiles][kColumns / 8][4];

  SCOREMOD_MEMBER void clear() {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) at[m][n][e] = 0.0f;
  }
};

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
    for (int m = 0; m < kRowTiles; ++m) {
      const auto& low = w.at[m][k / 8];
      const auto& high = w.at[m][k / 8 + 1];
      left[m][0] = pair_of(low[0], low[1]);
      left[m][1] = pair_of(low[2], low[3]);
      left[m][2] = pair_of(high[0], high[1]);
      left[m][3] = pair_of(high[2], high[3]);
    }
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

SCOREMOD_FUNCTION Half half_of(float x) { return (Half)pair_of(x, 0.0f); }
SCOREMOD_FUNCTION float float_of(Half x) { return kBf16 ? load_bf16(&x, 0) : load_f16(&x, 0); }
SCOREMOD_FUNCTION bool is_finite(float x) { return x - x == 0.0f; }

// Rows below `end` of the sums times a factor of each row, to a tensor.
template <int kDim, int kRowTiles>
SCOREMOD_FUNCTION void store_rows(const Sums<kRowTiles, padded(kDim)>& sums, const float (&factors)[kRowTiles][2],
                                  const Rows& to, int first, int end) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + m * 16 + half * 8 + lane / 4;
      if (row >= end) continue;
      Half* const at = to.data + row * to.row;
#pragma unroll
      for (int n = 0; n < padded(kDim) / 8; ++n) {
        const int dim = n * 8 + lane % 4 * 2;
        const unsigned pair =
            pair_of(sums.at[m][n][half * 2] * factors[m][half], sums.at[m][n][half * 2 + 1] * factors[m][half]);
        if (to.aligned) {
          if (dim < kDim) *(unsigned*)(at + dim) = pair;
        } else {
          if (dim < kDim) at[dim * to.dim] = (Half)pair;
          if (dim + 1 < kDim) at[(dim + 1) * to.dim] = (Half)(pair >> 16);
        }
      }
    }
}

// Whether a row below `end` has a sum that is infinite or NaN.
template <int kRowTiles, int kColumns>
SCOREMOD_FUNCTION bool any_not_finite(const Sums<kRowTiles, kColumns>& sums, int first, int end) {
  const int lane = threadIdx.x % 32;
  bool found = false;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      // A sum of zeros is zero, and of anything else that is not finite NaN.
      float zero = 0.0f;
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) zero += sums.at[m][n][e] - sums.at[m][n][e];
      found = found || (zero != 0.0f && first + m * 16 + e / 2 * 8 + lane / 4 < end);
    }
  return found;
}

// The rows that a block's tiles of scores have, of a batch and a head (the first of those that share one of keys where
// heads are packed, where a query's heads are neighbours), and whose they are.
SCOREMOD_FUNCTION int rows_of_head(const AttentionArguments& call) {
  return kPackedHeads ? call.group * call.seq_q : call.seq_q;
}
struct RowOwner {
  int h, q;
};
SCOREMOD_FUNCTION RowOwner owner_of(const AttentionArguments& call, int h, int row) {
  if (!kPackedHeads) return {h, row};
  return {h + row % call.group, row / call.group};
}

// What a mask leaves of a tile of kQueries by kKeys.
enum TileState { kEmptyTile = 0, kPartialTile = 1, kFullTile = 2 };

// The tile's place in `states`: a byte for each tile of each batch and head that the mask tells apart.
SCOREMOD_FUNCTION long long state_place(const AttentionArguments& call, int b, int h, int query_tile, int key_tile) {
  const long long plane = (long long)(kMaskVariesWithBatch ? b : 0) * (kMaskVariesWithHead ? call.heads_q : 1) +
                          (kMaskVariesWithHead ? h : 0);
  return (plane * call.query_tiles + query_tile) * call.key_tiles + key_tile;
}

// By the sizes and the band alone, of queries q to last_q.
SCOREMOD_FUNCTION TileState band_state_of(const AttentionArguments& call, int q, int last_q, int key_tile) {
  const int kv = key_tile * kKeys;
  const int last_kv = kv + kKeys < call.seq_kv ? kv + kKeys - 1 : call.seq_kv - 1;
  if (kv - last_q > call.highest || last_kv - q < call.lowest) return kEmptyTile;
  if (kv + kKeys > call.seq_kv) return kPartialTile;
  return kv - last_q >= call.lowest && last_kv - q <= call.highest ? kFullTile : kPartialTile;
}
SCOREMOD_FUNCTION TileState band_state(const AttentionArguments& call, int query_tile, int key_tile) {
  const int q = query_tile * kQueries;
  return band_state_of(call, q, q + kQueries < call.seq_q ? q + kQueries - 1 : call.seq_q - 1, key_tile);
}

SCOREMOD_FUNCTION TileState state_of(const AttentionArguments& call, int b, int h, int query_tile, int key_tile) {
  const TileState by_band = band_state(call, query_tile, key_tile);
  if (kMask == kBandMask || by_band == kEmptyTile) return by_band;
  if (kMask == kScoreMask) return kPartialTile;
  return (TileState)call.states[state_place(call, b, h, query_tile, key_tile)];
}

// Steps through the tiles of a row (or, transposed, a column) of tiles that are not empty, in ascending order. All
// threads of a block see the same.
template <bool kTransposed>
struct TileWalk {
  int own, chunk, count;  // the other tile; the first of 32 tiles; how many tiles there are
  unsigned some, full;    // of the chunk: not empty, full; the tiles that were passed are gone from `some`
  int tile;
  bool partial;

  SCOREMOD_MEMBER void begin(const AttentionArguments& call, int b, int h, int own_tile) {
    own = own_tile;
    count = kTransposed ? call.query_tiles : call.key_tiles;
    chunk = 0;
    look(call, b, h);
  }
  SCOREMOD_MEMBER bool next(const AttentionArguments& call, int b, int h) {
    while (some == 0) {
      chunk += 32;
      if (chunk >= count) return false;
      look(call, b, h);
    }
    const unsigned lowest = some & (0u - some);
    some ^= lowest;
    partial = (full & lowest) == 0;
    tile = chunk + bit_number(lowest);
    return true;
  }

  SCOREMOD_MEMBER void look(const AttentionArguments& call, int b, int h) {
    const int at = chunk + threadIdx.x % 32;
    TileState state = kEmptyTile;
    if (at < count) state = kTransposed ? state_of(call, b, h, at, own) : state_of(call, b, h, own, at);
    some = ballot(state != kEmptyTile);
    full = ballot(state == kFullTile);
  }
};
