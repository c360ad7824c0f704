// attention_block_mask decides exactly which tiles the mask leaves, one warp for each. If intervals do not decide, it
// evaluates the mask at every element until it has seen a kept key and a masked one. If a mask reads the score, only
// its score-free terms classify tiles: a tile can be proven empty, never full.
#pragma once

#include "backend/kernels/mask/element.cuh"
#include "backend/kernels/mask/ranges.cuh"

// By all elements of the tile.
SCOREMOD_FUNCTION TileKind state_by_elements(const Arguments& p, int b, int h, int first_q, int end_q, int first_kv) {
  const int lane = threadIdx.x % 32, seq_kv = p.call.seq_kv;
  bool kept = false, masked = kMask == kScoreMask;
  // A thread stays with a key: what the mask reads of keys is read once, and what it reads of queries is the same for
  // all threads.
  bool decided = false;
  for (int any_kv = first_kv + lane; any_kv < first_kv + kKeys && !decided; any_kv += 32) {
    const bool is_key = any_kv < seq_kv;
    const int kv = is_key ? any_kv : seq_kv - 1;
    for (int begin = first_q; begin < end_q && !decided; begin += 32) {
      const int end = begin + 32 < end_q ? begin + 32 : end_q;
#pragma unroll 8
      for (int q = begin; q < end; ++q) {
        const bool keep = keeps(p, b, h, q, kv) && is_key;
        kept = kept || keep;
        masked = masked || !keep;
      }
      decided = ballot(kept) != 0 && ballot(masked) != 0;
    }
  }
  const bool some = ballot(kept) != 0, all = ballot(masked) == 0;
  return !some ? kEmptyTile : all ? kFullTile : kPartialTile;
}

// Whether all keys have a block; by a warp.
SCOREMOD_FUNCTION bool keys_have_blocks(const AttentionArguments& call, int b, int first_kv, int end_kv) {
  bool all = true;
  for (int kv = first_kv + threadIdx.x % 32; kv < end_kv; kv += 32) all = all && has_page(call, b, kv);
  return ballot(!all) == 0;
}

SCOREMOD_KERNEL(128, 1) attention_block_mask(SCOREMOD_ARGUMENT p) {
  const AttentionArguments& call = p.call;
  const long long number = (long long)blockIdx.x * 4 + threadIdx.x / 32;
  const long long of_plane = (long long)call.query_tiles * call.key_tiles;
  // A persistent kernel's counter of taken work tiles starts at 0 here, if every call finds these states.
  if (kPersistent && number == 0 && threadIdx.x == 0 && call.taken != nullptr) *call.taken = 0;
  const int heads = kMaskVariesWithHead ? call.heads_q : 1, batches = kMaskVariesWithBatch ? call.batch : 1;
  if (number >= of_plane * heads * batches) return;
  const int plane = (int)(number / of_plane), b = plane / heads, h = plane % heads;
  const int query_tile = (int)(number % of_plane / call.key_tiles), key_tile = (int)(number % call.key_tiles);
  const int first_q = query_tile * kQueries, first_kv = key_tile * kKeys;
  const int end_q = first_q + kQueries < call.seq_q ? first_q + kQueries : call.seq_q;
  const int end_kv = first_kv + kKeys < call.seq_kv ? first_kv + kKeys : call.seq_kv;
  TileKind state = kEmptyTile;
  const bool there = first_q < queries_of(call, b) && first_kv < keys_of(call, b);
  if (there && band_state(call, query_tile, key_tile) != kEmptyTile) {
    state = mask_over(p, b, h, first_q, end_q - 1, first_kv, end_kv - 1);
    if (kPaged && state == kFullTile && !keys_have_blocks(call, b, first_kv, end_kv)) state = kPartialTile;
    if (state == kPartialTile) state = state_by_elements(p, b, h, first_q, end_q, first_kv);
    // Keys beyond the last are masked.
    if (state == kFullTile && (kMask == kScoreMask || first_kv + kKeys > call.seq_kv)) state = kPartialTile;
  }
  if (threadIdx.x % 32 == 0) call.states[number] = (unsigned char)state;
}

// attention_tile_order sorts the rows of tiles of each plane of states (if kFused, the columns), the longest first.
// Those of equal length stay in the order that they have without it.
constexpr int kFullTileTime = 2, kPartialTileTime = 3;

constexpr int kOrderThreads = 512;

SCOREMOD_KERNEL(kOrderThreads, 1) attention_tile_order(SCOREMOD_ARGUMENT p) {
  SCOREMOD_SHARED(shared);
  const AttentionArguments& call = p.call;
  int* const times = (int*)shared;
  const int tiles = kFused ? call.key_tiles : call.query_tiles, others = kFused ? call.query_tiles : call.key_tiles;
  const int next = kFused ? 1 : call.key_tiles, next_other = kFused ? call.key_tiles : 1;
  const unsigned char* const states = call.states + (long long)blockIdx.x * tiles * others;
#pragma unroll 1
  for (int i = threadIdx.x; i < tiles; i += kOrderThreads) {
    int time = 0;
#pragma unroll 8
    for (int j = 0; j < others; ++j) {
      const unsigned char state = states[(long long)i * next + (long long)j * next_other];
      time += state == kFullTile ? kFullTileTime : state == kPartialTile ? kPartialTileTime : 0;
    }
    times[i] = time;
  }
  cta_sync();
#pragma unroll 1
  for (int i = threadIdx.x; i < tiles; i += kOrderThreads) {
    int before = 0;
#pragma unroll 8
    for (int j = 0; j < tiles; ++j) {
      const bool is_first = kFused ? j < i : j > i;
      before += times[j] > times[i] || (times[j] == times[i] && is_first) ? 1 : 0;
    }
    call.order[(long long)blockIdx.x * tiles + before] = i;
  }
}
