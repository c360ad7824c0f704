// Tiles of q, k, v and d_o in shared memory, accumulators over them, and the tiles that a mask leaves.
#pragma once

#include "backend/kernels/shared/elements.cuh"
#include "backend/kernels/shared/memory.cuh"

struct Arguments {
  AttentionArguments call;
  OperandArgument operands[kOperands];
};

constexpr int kThreads = kWarps * 32;
constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

SCOREMOD_FUNCTION float infinity() { return float_of_bits(0x7f800000u); }

constexpr int kElementBytes = (int)sizeof(TileElement);
SCOREMOD_FUNCTION constexpr int padded(int dim) { return PaddedTile{1, dim, kElementBytes}.padded_dim; }
// Elements from one row of a tile to the next.
SCOREMOD_FUNCTION constexpr int row_length(int dim) {
  return PaddedTile{1, dim, kElementBytes}.row_bytes / kElementBytes;
}

SCOREMOD_FUNCTION int larger(int x, int y) { return x > y ? x : y; }

// A call's, 0 where it has none, so that a mask's arithmetic has one sum less.
SCOREMOD_FUNCTION int index_offset(int offset) { return kIndexOffsets ? offset : 0; }

// The index that a program sees of a query or key of a tile.
SCOREMOD_FUNCTION int program_query(const AttentionArguments& call, int q) {
  return kClampsQueries && q >= call.seq_q ? call.seq_q - 1 : q;
}
SCOREMOD_FUNCTION int program_key(const AttentionArguments& call, int kv) {
  return kClampsKeys && kv >= call.seq_kv ? call.seq_kv - 1 : kv;
}

// Rows first, first + 1, ... as elements of a tile; those from `end` on are zeros, and so are the dims that pad a row.
// By kLoaders threads, of which the calling one is `thread`. Complete after wait_for_copies() and a barrier.
template <int kTileRows, int kDim, int kLoaders = kThreads, class From>
SCOREMOD_FUNCTION void load_tile(TileElement* tile, const RowsOf<From>& from, int first, int end,
                                 int thread = threadIdx.x) {
  if (kSameType<From, TileElement> && from.aligned) {
    constexpr int kPerWord = kWordElements<TileElement>, kWords = padded(kDim) / kPerWord;
#pragma unroll 2
    for (int i = thread; i < kTileRows * kWords; i += kLoaders) {
      const int row = i / kWords, dim = i % kWords * kPerWord;
      const bool there = first + row < end && dim < kDim;
      copy_ahead<16>(tile + row * row_length(kDim) + dim, there ? from.at(first + row) + dim : from.data,
                     there ? 16 : 0);
    }
  } else {
#pragma unroll 1
    for (int i = thread; i < kTileRows * padded(kDim); i += kLoaders) {
      const int row = i / padded(kDim), dim = i % padded(kDim);
      TileElement* const to = tile + row * row_length(kDim) + dim;
      *to = 0;
      if (first + row < end && dim < kDim) convert_element(to, from.at(first + row)[dim * from.dim]);
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

// Rounds 16 columns of a row tile to halves, as the left operand of an MMA has them.
template <int kRowTiles, int kColumns, bool kAreBf16 = kBf16>
SCOREMOD_FUNCTION void round_to_left(unsigned (&left)[4], const Sums<kRowTiles, kColumns>& sums, int row_tile,
                                     int column) {
  const auto& low = sums.at[row_tile][column / 8];
  const auto& high = sums.at[row_tile][column / 8 + 1];
  left[0] = pair_of<kAreBf16>(low[0], low[1]);
  left[1] = pair_of<kAreBf16>(low[2], low[3]);
  left[2] = pair_of<kAreBf16>(high[0], high[1]);
  left[3] = pair_of<kAreBf16>(high[2], high[3]);
}

template <int kRowTiles, int kColumns>
SCOREMOD_FUNCTION void multiply(Sums<kRowTiles, kColumns>& sums, float factor) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) sums.at[m][n][e] *= factor;
}

// Multiplies each column of the sums by its factor.
template <int kRowTiles, int kColumns>
SCOREMOD_FUNCTION void multiply_columns(Sums<kRowTiles, kColumns>& sums, const float* factors) {
  const float* const own = factors + threadIdx.x % 4 * 2;
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
    const float even = own[n * 8], odd = own[n * 8 + 1];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int e = 0; e < 4; ++e) sums.at[m][n][e] *= e % 2 == 0 ? even : odd;
  }
}

SCOREMOD_FUNCTION bool is_finite(float x) { return x - x == 0.0f; }

// Rows below `end` of the sums times a factor of each row, to a tensor.
template <int kDim, int kRowTiles, class To>
SCOREMOD_FUNCTION void store_rows(const Sums<kRowTiles, padded(kDim)>& sums, const float (&factors)[kRowTiles][2],
                                  const RowsOf<To>& to, int first, int end) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + m * 16 + half * 8 + lane / 4;
      if (row >= end) continue;
      To* const at = to.at(row);
#pragma unroll
      for (int n = 0; n < padded(kDim) / 8; ++n) {
        const int dim = n * 8 + lane % 4 * 2;
        const float low = sums.at[m][n][half * 2] * factors[m][half],
                    high = sums.at[m][n][half * 2 + 1] * factors[m][half];
        if (to.aligned) {
          if (dim < kDim) store_pair(at + dim, low, high);
        } else {
          if (dim < kDim) store_element(at + dim * to.dim, low);
          if (dim + 1 < kDim) store_element(at + (dim + 1) * to.dim, high);
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

// The rows of a CTA's tiles of scores, for a batch and a head, and their owners. With pack-GQA the head is the first of
// those that share a KV head, and a query's heads are neighbours.
SCOREMOD_FUNCTION int rows_of_head(const AttentionArguments& call) {
  return kPackGqa ? call.group * call.seq_q : call.seq_q;
}
struct RowOwner {
  int h, q;
};
SCOREMOD_FUNCTION RowOwner owner_of(const AttentionArguments& call, int h, int row) {
  if (!kPackGqa) return {h, row};
  return {h + row % call.group, row / call.group};
}

// The tile coordinate of a CTA. Heads are taken call.heads_together at a time, so that what their CTAs read stays in
// L2. The first tiles of all heads come first, then their second tiles. If tiles are in order of their time, the last
// CTAs are short.
struct TilePlace {
  int head, tile;
};
SCOREMOD_FUNCTION TilePlace place_of(const AttentionArguments& call, int number, int tiles, int heads) {
  const int first = number / (call.heads_together * tiles) * call.heads_together, within = number - first * tiles;
  const int together = heads - first < call.heads_together ? heads - first : call.heads_together;
  return {first + within % together, within / together};
}
// The number of a plane of the block mask, among the batches and heads that the mask tells apart.
SCOREMOD_FUNCTION long long plane_of(const AttentionArguments& call, int b, int h) {
  return (long long)(kMaskVariesWithBatch ? b : 0) * (kMaskVariesWithHead ? call.heads_q : 1) +
         (kMaskVariesWithHead ? h : 0);
}
// Work tiles of varlen sequences are packed, one sequence's after the other's. So there are as many as the tokens ask
// for, and not as many as if every sequence had the longest length. The offset of a sequence alone tells where its
// tiles begin: the offset in whole tiles, and one more for each sequence before. So there is room for each sequence's
// last tile, which may be cut off, and some packed tiles have no rows.
SCOREMOD_FUNCTION int first_packed_tile(const TensorArgument& tensor, int b, int rows) {
  return clamped(tensor.places[b * tensor.place_batch], 0, tensor.count) / rows + b;
}
// The sequence and its tile of a packed tile. One without rows is beyond the sequence's last.
struct PackedPlace {
  int b, tile;
};
// All threads of a warp call it. They look at 32 sequences at a time for the last that has begun.
SCOREMOD_FUNCTION PackedPlace packed_place(const TensorArgument& tensor, int batch, int packed_tile, int rows) {
  int first = 0;
#pragma unroll 1
  for (int count = batch; count > 1;) {
    const int step = (count + 31) / 32, own = (int)(threadIdx.x % 32) * step;
    const unsigned begun = ballot(own < count && first_packed_tile(tensor, first + own, rows) <= packed_tile);
    // Sequences that have begun come first: the last one's bit is the one whose next bit is 0.
    const int passed = begun == 0 ? 0 : bit_number(begun ^ begun >> 1) * step;
    first += passed;
    count = count - passed < step ? count - passed : step;
  }
  const int tile = packed_tile - first_packed_tile(tensor, first, rows);
  constexpr int kGreatest = 0x7fffffff;
  return {first, tile < 0 ? kGreatest / rows : tile};
}

// The last tiles of queries come first: under a causal mask they take longest.
SCOREMOD_FUNCTION QueryPlace query_place(const AttentionArguments& call, int number) {
  if (kPacksQueries) {
    const TilePlace place = place_of(call, number, call.query_work_tiles, call.heads_q);
    const PackedPlace packed = packed_place(call.q, call.batch, place.tile, kQueries);
    const int last = (queries_of(call, packed.b) + kQueries - 1) / kQueries - 1;
    return {packed.b, place.head, packed.tile > last ? packed.tile : last - packed.tile};
  }
  const TilePlace place = place_of(call, number, call.query_tiles, call.batch * call.heads_q);
  const int b = place.head / call.heads_q, h = place.head % call.heads_q;
  if (kHasStates && !kFused && call.order != nullptr)
    return {b, h, call.order[plane_of(call, b, h) * call.query_tiles + place.tile]};
  return {b, h, call.query_tiles - 1 - place.tile};
}
// The first tiles of keys come first, which take longest under a causal mask.
SCOREMOD_FUNCTION KeyPlace key_place(const AttentionArguments& call, int number) {
  const int heads_kv = call.heads_q / call.group;
  if (kPacksKeys) {
    const TilePlace place = place_of(call, number, call.key_work_tiles, heads_kv);
    const PackedPlace packed = packed_place(call.k, call.batch, place.tile, kKeys);
    return {packed.b, place.head, packed.tile};
  }
  const TilePlace place = place_of(call, number, call.key_tiles, call.batch * heads_kv);
  const int b = place.head / heads_kv, head_kv = place.head % heads_kv;
  if (kHasStates && kFused && call.order != nullptr)
    return {b, head_kv, call.order[plane_of(call, b, head_kv * call.group) * call.key_tiles + place.tile]};
  return {b, head_kv, place.tile};
}

// The state of a tile of kQueries by kKeys under the mask.
enum TileKind { kEmptyTile = 0, kPartialTile = 1, kFullTile = 2 };

// The tile's place in `states`: a byte for each tile of each batch and head that the mask tells apart.
SCOREMOD_FUNCTION long long state_place(const AttentionArguments& call, int b, int h, int query_tile, int key_tile) {
  return (plane_of(call, b, h) * call.query_tiles + query_tile) * call.key_tiles + key_tile;
}

// Whether the ends of varlen sequences are all that masks an element beside the band.
constexpr bool kEndsWithSequences = kMask == kBandMask && (kRaggedQueries || kRaggedKeys);

// By the sizes and the band alone, of queries q to last_q. A forward's rows beyond a sequence's last query are not
// stored, so that they may be whatever a full tile makes of them. A backward sums over rows.
SCOREMOD_FUNCTION TileKind band_state_of(const AttentionArguments& call, int b, int q, int last_q, int key_tile) {
  const int kv = key_tile * kKeys, keys = kEndsWithSequences ? keys_of(call, b) : call.seq_kv;
  const int last_kv = kv + kKeys < keys ? kv + kKeys - 1 : keys - 1;
  if (kv - last_q > call.highest || last_kv - q < call.lowest) return kEmptyTile;
  if (kEndsWithSequences) {
    const int queries = queries_of(call, b);
    if (kv >= keys || q >= queries) return kEmptyTile;
    if (!kIsForward && last_q >= queries) return kPartialTile;
  }
  if (kv + kKeys > keys) return kPartialTile;
  return kv - last_q >= call.lowest && last_kv - q <= call.highest ? kFullTile : kPartialTile;
}
SCOREMOD_FUNCTION TileKind band_state(const AttentionArguments& call, int b, int query_tile, int key_tile) {
  const int q = query_tile * kQueries;
  return band_state_of(call, b, q, q + kQueries < call.seq_q ? q + kQueries - 1 : call.seq_q - 1, key_tile);
}

SCOREMOD_FUNCTION TileKind state_of(const AttentionArguments& call, int b, int h, int query_tile, int key_tile) {
  const TileKind by_band = band_state(call, b, query_tile, key_tile);
  if (kMask == kBandMask || by_band == kEmptyTile) return by_band;
  if (!kHasStates) return kPartialTile;
  return (TileKind)call.states[state_place(call, b, h, query_tile, key_tile)];
}

// Steps through the tiles of a row (or, transposed, a column) of tiles that are not empty, in ascending order. Where
// heads take turns, CTAs that begin together walk down from the last queries, which they all have under a causal mask.
// Later CTAs begin one by one, each as a longer one ends, and walk up from their own first tile. So they are at one
// tile, too. All threads of a block see the same.
template <bool kTransposed>
struct TileWalk {
  int own, chunk, count;  // the other tile; the first of 32 tiles; how many tiles there are
  unsigned some, full;    // of the chunk: not empty, full; the tiles that were passed are gone from `some`
  int tile;
  bool partial, descends;

  SCOREMOD_MEMBER void begin(const AttentionArguments& call, int b, int h, int own_tile) {
    own = own_tile;
    count = tiles_of(call, b);
    chunk = 0;
    descends = kTransposed && kHeadsTakeTurns && (int)blockIdx.x / call.blocks % 2 == 0;
    look(call, b, h);
  }
  // With what another walk's look() has found of the first tiles.
  SCOREMOD_MEMBER void begin_with(const AttentionArguments& call, int b, int own_tile, unsigned first_some,
                                  unsigned first_full) {
    own = own_tile;
    count = tiles_of(call, b);
    chunk = 0;
    some = first_some;
    full = first_full;
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
    tile = tile_of(chunk + bit_number(lowest));
    return true;
  }

  // The sequence's tiles, which are fewer than the longest length has where it is a varlen one.
  SCOREMOD_MEMBER static int tiles_of(const AttentionArguments& call, int b) {
    if (kTransposed) return kRaggedQueries ? (queries_of(call, b) + kQueries - 1) / kQueries : call.query_tiles;
    return kRaggedKeys ? (keys_of(call, b) + kKeys - 1) / kKeys : call.key_tiles;
  }
  // The tile of a step of the walk.
  SCOREMOD_MEMBER int tile_of(int step) const {
    return kTransposed && kHeadsTakeTurns && descends ? count - 1 - step : step;
  }
  SCOREMOD_MEMBER void look(const AttentionArguments& call, int b, int h) {
    const int step = chunk + threadIdx.x % 32, at = tile_of(step);
    TileKind state = kEmptyTile;
    if (step < count) state = kTransposed ? state_of(call, b, h, at, own) : state_of(call, b, h, own, at);
    some = ballot(state != kEmptyTile);
    full = ballot(state == kFullTile);
  }
};
