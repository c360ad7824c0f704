// Shared parts of the decode kernels (split-KV, pack-GQA). They find a CTA's rows and keys, load its rows of q to
// shared memory, and walk over its tiles of keys. Rows are the queries of all heads that share a KV head. Its keys are
// split among CTAs, and within a CTA among teams of threads.
#pragma once

#include "backend/kernels/shared/program.cuh"

// Tiles of keys that a team takes at once, before others' begin; they are 64 keys.
constexpr int kChunkTiles = 64 / kKeys;
// Chunks that a walk looks at together. A lane decides a tile by itself, unless it takes all of the tile's elements.
constexpr bool kLooksAtElements = kMask == kListedMask && !kMaskKeepsPrefix;
constexpr int kChunksAtOnce = kLooksAtElements ? 1 : 32 / kChunkTiles;

SCOREMOD_FUNCTION int kv_heads_of(const AttentionArguments& call) { return call.heads_q / call.group; }

// A tile of kQueries rows of a batch's KV head, whose first query head is h, and one of call.splits shares of its keys.
struct KeyShare {
  int b, kv_head, h, row_tile, split;

  SCOREMOD_MEMBER int first_row() const { return row_tile * kQueries; }
};
// Neighbours have the same keys.
SCOREMOD_FUNCTION KeyShare share_of(const AttentionArguments& call, int number) {
  const int rest = number / call.query_tiles, head = rest / call.splits, kv_head = head % kv_heads_of(call);
  return {head / kv_heads_of(call), kv_head, kv_head * call.group, number % call.query_tiles, rest % call.splits};
}

// Stretches of 64 keys, by their numbers in a sequence.
struct Chunks {
  int first, end;
};
// The chunks that the sequence has, and that the band leaves queries first_q to last_q.
SCOREMOD_FUNCTION Chunks chunks_of_band(const AttentionArguments& call, int keys, int first_q, int last_q) {
  const int first_kv = first_q + call.lowest, end_kv = last_q + call.highest + 1;
  return {first_kv > 0 ? first_kv / 64 : 0, ((end_kv < keys ? end_kv : keys) + 63) / 64};
}

// Whether each of these keys has a page.
SCOREMOD_FUNCTION bool keys_have_pages(const AttentionArguments& call, int b, int first_key, int last_key) {
  if (!kPaged) return true;
  bool all = true;
#pragma unroll 4
  for (int page = first_key / kBlockRows; page <= last_key / kBlockRows; ++page)
    all &= has_page(call, b, page * kBlockRows);
  return all;
}

// Steps through a team's tiles of keys that are not empty, in ascending order. A team takes every `step`-th of the
// chunks that the band leaves, so that teams share any stretch of keys evenly.
struct KeyWalk {
  int h, first_q, last_q;  // of the row of tiles; h is its first head
  int chunk, end, step;    // the first of kChunksAtOnce chunks
  unsigned some, full;     // of these chunks' tiles: not empty, full; the tiles that were passed are gone from `some`
  int tile;
  bool partial;

  // The keys of a team of the block with `own`.
  SCOREMOD_MEMBER void begin(const AttentionArguments& call, const KeyShare& own, int keys, int team) {
    begin_rows(call, own);
    const Chunks all = chunks_of_band(call, keys, first_q, last_q);
    end = all.end;
    step = call.splits * kTeams;
    chunk = all.first + own.split * kTeams + team - kChunksAtOnce * step;
  }
  // All of these chunks.
  SCOREMOD_MEMBER void begin_all(const AttentionArguments& call, const KeyShare& own, const Chunks& chunks) {
    begin_rows(call, own);
    end = chunks.end;
    step = 1;
    chunk = chunks.first - kChunksAtOnce;
  }
  SCOREMOD_MEMBER void begin_rows(const AttentionArguments& call, const KeyShare& own) {
    const int last_row = rows_of_head(call) - 1, last_of_tile = own.first_row() + kQueries - 1;
    h = own.h;
    first_q = owner_of(call, h, own.first_row()).q;
    last_q = owner_of(call, h, last_of_tile < last_row ? last_of_tile : last_row).q;
    // No row beyond a varlen sequence's last query is stored.
    if (kRaggedQueries && last_q > first_q) last_q = clamped(queries_of(call, own.b) - 1, first_q, last_q);
    some = 0;
  }
  SCOREMOD_MEMBER bool next(const Arguments& p, int b) {
    while (some == 0) {
      if (chunk >= end) return false;
      chunk += kChunksAtOnce * step;
      if (chunk >= end) return false;
      look(p, b);
    }
    const unsigned lowest = some & (0u - some);
    some ^= lowest;
    partial = (full & lowest) == 0;
    tile = tile_of(bit_number(lowest));
    return true;
  }

  // The tile of a bit of `some`.
  SCOREMOD_MEMBER int tile_of(int bit) const {
    return (chunk + bit / kChunkTiles * step) * kChunkTiles + bit % kChunkTiles;
  }

  SCOREMOD_MEMBER void look(const Arguments& p, int b) {
    const int lane = threadIdx.x % 32, at = tile_of(lane);
    const bool there = lane < kChunksAtOnce * kChunkTiles && at < end * kChunkTiles && at < p.call.key_tiles;
    TileKind state = there ? band_state_of(p.call, b, first_q, last_q, at) : kEmptyTile;
    if (kMask == kListedMask && kMaskKeepsPrefix && state != kEmptyTile) state = state_by_ends(p, b, at, state);
    some = ballot(state != kEmptyTile);
    full = kMask == kScoreMask ? 0u : ballot(state == kFullTile);
    if (kLooksAtElements && some != 0) look_closely(p, b);
  }
  // The state of a tile, which by the band alone would be `state`, under a mask that keeps a prefix of the keys.
  SCOREMOD_MEMBER TileKind state_by_ends(const Arguments& p, int b, int at, TileKind state) const {
    const int last_head = h + (kMaskVariesWithHead ? p.call.group - 1 : 0);
    const int last = kMaskVariesWithQuery ? last_q : first_q, next_query = last > first_q ? last - first_q : 1;
    const int first_key = at * kKeys, end_key = first_key + kKeys;
    const int last_key = (end_key < p.call.seq_kv ? end_key : p.call.seq_kv) - 1;
    bool some_kept = false, all_kept = state == kFullTile && keys_have_pages(p.call, b, first_key, last_key);
    for (int head = h; head <= last_head; ++head) {
      for (int q = first_q; q <= last; q += next_query) {
        some_kept |= mask_keeps(p, b, head, q, first_key);
        all_kept &= mask_keeps(p, b, head, q, last_key);
      }
    }
    return all_kept ? kFullTile : some_kept ? kPartialTile : kEmptyTile;
  }
  // Evaluates the mask until every tile of the chunk is known to have a kept key and a masked one. It does so once for
  // all queries if the mask is the same for them, as lengths are, and twice if it grows with them, as below a diagonal.
  // Tiles without a masked key take longest.
  SCOREMOD_MEMBER void look_closely(const Arguments& p, int b) {
    constexpr int kTogether = kKeys < 32 ? kKeys : 32;
    constexpr unsigned kAll = kTogether == 32 ? ~0u : (1u << kTogether % 32) - 1u;
    const int lane = threadIdx.x % 32, last_head = h + (kMaskVariesWithHead ? p.call.group - 1 : 0);
    const int last = kMaskVariesWithQuery ? last_q : first_q;
    const int next_query = kMaskGrowsWithQuery && last > first_q ? last - first_q : 1;
    unsigned kept = 0, masked = 0;
    for (int head = h; head <= last_head; ++head) {
      for (int q = first_q; q <= last; q += next_query) {
#pragma unroll
        for (int i = 0; i < 64; i += 32) {
          const int kv = chunk * 64 + i + lane;
          const unsigned bits = ballot(kv < p.call.seq_kv && keeps(p, b, head, q, kv));
#pragma unroll
          for (int part = 0; part < 32; part += kTogether) {
            const unsigned of_tile = bits >> part & kAll, tile_bit = 1u << (i + part) / kKeys;
            if (of_tile != 0) kept |= tile_bit;
            if (of_tile != kAll) masked |= tile_bit;
          }
        }
        if ((some & ~(kept & masked)) == 0) break;
      }
    }
    some &= kept;
    full = some & ~masked;
  }
};

// A tile's rows of q, of as many heads; rows beyond the last are zeros, and so are the dims that pad a row. Eight dims
// of a row from one on go to word_at(row, dim). By kLoaders threads, of which the calling one is `thread`. Eight
// threads copy a row, whose place each finds once.
template <int kLoaders = kThreads, class WordAt>
SCOREMOD_FUNCTION void load_queries(const AttentionArguments& call, const KeyShare& own, const WordAt& word_at,
                                    int thread = threadIdx.x) {
  constexpr int kWords = padded(kDimQk) / 8, kTogether = 8;
  const int rows = rows_of_head(call) - own.first_row(), queries = queries_of(call, own.b);
#pragma unroll 1
  for (int row = thread / kTogether; row < kQueries; row += kLoaders / kTogether) {
    const RowOwner of = owner_of(call, own.h, own.first_row() + (row < rows ? row : 0));
    const Rows from = rows_of(call.q, own.b, of.h);
    const bool has_row = row < rows && of.q < queries;
    const Half* const at = has_row ? from.at(of.q) : from.data;
#pragma unroll
    for (int word = 0; word < kWords; word += kTogether) {
      const int dim = (word + thread % kTogether) * 8;
      if (kWords % kTogether != 0 && dim >= kWords * 8) break;
      const bool there = has_row && dim < kDimQk;
      Half* const to = word_at(row, dim);
      if (from.aligned) {
        copy_ahead<16>(to, there ? at + dim : from.data, there ? 16 : 0);
      } else {
        for (int j = 0; j < 8; ++j) to[j] = there && dim + j < kDimQk ? at[(dim + j) * from.dim] : (Half)0;
      }
    }
  }
}
