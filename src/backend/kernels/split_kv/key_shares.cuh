// How the persistent decode kernels share out all keys that there are, by lengths in device memory. The chunks of all
// tiles of rows, sequences and KV heads have numbers: those of all first tiles of rows come first, one sequence after
// the other. CTAs take even shares of them, and so do a CTA's teams. With as many CTAs for each tile of rows, those of
// the same keys run at the same time, so that L2 has the keys for all but the first.
#pragma once

#include "backend/kernels/split_kv/packed_rows.cuh"
#include "backend/kernels/split_kv/partials.cuh"

// A stretch of chunks in `parts` shares, none of which is empty: `parts` is at most `count`.
struct EvenShares {
  long long first, count;
  int parts;

  SCOREMOD_MEMBER long long first_of(int part) const { return first + count * part / parts; }
  SCOREMOD_MEMBER int part_of(long long chunk) const { return (int)(((chunk - first + 1) * parts - 1) / count); }
};

// The chunks that a batch's queries may see. Each of its tiles of rows counts as `count` chunks. Without keys that is
// one, because rows are to be written; without queries it is none.
struct BatchChunks {
  Chunks all;
  int count;
};
SCOREMOD_FUNCTION BatchChunks chunks_of_batch(const AttentionArguments& call, int b) {
  if (queries_of(call, b) == 0) return {{0, 0}, 0};
  const Chunks all = chunks_of_band(call, keys_of(call, b), 0, call.seq_q - 1);
  return {all, all.end > all.first ? all.end - all.first : 1};
}

// Batches whose chunks one thread adds up.
SCOREMOD_FUNCTION int batches_of_thread(const AttentionArguments& call) {
  return (call.batch + kThreads - 1) / kThreads;
}
// shfl.sync of the lane so many before, or of the first lanes themselves.
SCOREMOD_FUNCTION long long from_lane_before(long long value, int distance) {
  const int lane = threadIdx.x % 32, from = lane < distance ? lane : lane - distance;
  const unsigned low = (unsigned)from_lane((int)value, from), high = (unsigned)from_lane((int)(value >> 32), from);
  return (long long)((unsigned long long)high << 32 | low);
}
// Finds how many chunks there are in the batches of each thread and those before, for one tile of rows. Returns the
// most chunks of a batch of the thread's. All threads of the CTA call it.
SCOREMOD_FUNCTION int add_up_chunks(const AttentionArguments& call, long long* sums) {
  const int thread = threadIdx.x, each = batches_of_thread(call);
  long long own = 0;
  int most = 0;
#pragma unroll 4
  for (int b = thread * each; b < (thread + 1) * each && b < call.batch; ++b) {
    const int count = chunks_of_batch(call, b).count;
    own += (long long)kv_heads_of(call) * count;
    most = larger(most, count);
  }
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const long long before = from_lane_before(own, distance);
    if (thread % 32 >= distance) own += before;
  }
  sums[thread] = own;
  block_barrier();
#pragma unroll 1
  for (int warp = 0; warp < thread / 32; ++warp) own += sums[warp * 32 + 31];
  block_barrier();
  sums[thread] = own;
  block_barrier();
  return most;
}

// A tile of rows with chunks `begin` to `end` of its `count`. `first` is the number of its first chunk among all.
struct TilePiece {
  KeyShare own;
  Chunks all;
  long long first;
  int count, begin, end;

  SCOREMOD_MEMBER bool opens_left() const { return begin > 0; }
  SCOREMOD_MEMBER bool opens_right() const { return end < count; }
  SCOREMOD_MEMBER Chunks chunks() const {
    return {all.first + begin, all.first + end < all.end ? all.first + end : all.end};
  }
};

// How many chunks there are for all tiles of rows.
SCOREMOD_FUNCTION long long all_chunks(const AttentionArguments& call, const long long* sums) {
  return call.query_tiles * sums[kThreads - 1];
}

// Steps through the tiles of rows that have the chunks of a share.
struct PieceWalk {
  long long at, end, batch_first, of_row_tile;  // numbers of chunks, and how many a tile of rows has
  int row_tile, b;
  BatchChunks chunks;

  SCOREMOD_MEMBER void begin(const AttentionArguments& call, const long long* sums, long long first, long long last) {
    at = first;
    end = last;
    of_row_tile = sums[kThreads - 1];
    row_tile = (int)(at / of_row_tile);
    const long long row_first = row_tile * of_row_tile;
    int low = 0, high = kThreads - 1;  // the first thread whose sum is greater
    while (low < high) {
      const int middle = (low + high) / 2;
      if (sums[middle] > at - row_first)
        high = middle;
      else
        low = middle + 1;
    }
    batch_first = row_first + (low == 0 ? 0 : sums[low - 1]);
    b = low * batches_of_thread(call);
    find_batch(call);
  }
  SCOREMOD_MEMBER long long of_batch(const AttentionArguments& call) const {
    return (long long)kv_heads_of(call) * chunks.count;
  }
  SCOREMOD_MEMBER void find_batch(const AttentionArguments& call) {
    for (; b < call.batch; ++b) {
      chunks = chunks_of_batch(call, b);
      if (at < batch_first + of_batch(call)) return;
      batch_first += of_batch(call);
    }
  }
  SCOREMOD_MEMBER void find_next_batch(const AttentionArguments& call) {
    batch_first += of_batch(call);
    ++b;
    find_batch(call);
    if (b < call.batch) return;
    ++row_tile;
    batch_first = row_tile * of_row_tile;
    b = 0;
    find_batch(call);
  }
  SCOREMOD_MEMBER bool next(const AttentionArguments& call, TilePiece& piece) {
    if (at >= end) return false;
    if (at >= batch_first + of_batch(call)) find_next_batch(call);
    // Lengths that somebody changes meanwhile lead nowhere else.
    if (b >= call.batch || row_tile >= call.query_tiles || at < batch_first) return false;
    const int kv_head = (int)((at - batch_first) / chunks.count);
    piece.own = {b, kv_head, kv_head * call.group, row_tile, 0};
    piece.all = chunks.all;
    piece.first = batch_first + (long long)kv_head * chunks.count;
    piece.count = chunks.count;
    piece.begin = (int)(at - piece.first);
    const long long rest = end - piece.first;
    piece.end = rest < chunks.count ? (int)rest : chunks.count;
    at = piece.first + piece.end;
    return true;
  }
};

// Tiles of rows whose keys several teams of the persistent decode kernel share. Their partials lie in call.parts. The
// CTA merges those of its teams, and the last of the CTAs that share a tile merges theirs.

// A tile's partials: that of the last share lies elsewhere if the tile ends there.
struct PartList {
  const float* first;
  int count;
  bool ends;

  SCOREMOD_MEMBER const float* at(int i, int floats) const {
    return first + (2ll * i - (ends && i == count - 1 ? 1 : 0)) * floats;
  }
};

// A tile that the CTA has not all keys of, or that several of its teams share; b is negative where there is none.
struct OpenTile {
  KeyShare own;
  int count;
  long long first;
  PartList merged;  // that the CTA merges next

  SCOREMOD_MEMBER long long end() const { return first + count; }
};

// A CTA's share of all chunks, its teams' shares of that, and where partials lie. A team, or a CTA, has two partials at
// most: of a tile that goes on behind its share, and of one that ends in it.
struct OpenParts {
  EvenShares ctas, teams;
  int cta, floats;  // floats of a partial: of the rows that there are

  SCOREMOD_MEMBER long long end() const { return ctas.first_of(cta + 1); }
  // Whether other CTAs have keys of the tile, too.
  SCOREMOD_MEMBER bool is_shared(const OpenTile& tile) const { return tile.first < teams.first || tile.end() > end(); }
  SCOREMOD_MEMBER float* of_team(const AttentionArguments& call, int team, bool goes_on) const {
    return call.parts + (2ll * (cta * kTeams + team) + (goes_on ? 1 : 0)) * floats;
  }
  SCOREMOD_MEMBER float* of_cta(const AttentionArguments& call, int number, bool goes_on) const {
    return call.parts + (2ll * (call.blocks * kTeams + number) + (goes_on ? 1 : 0)) * floats;
  }
};

// A CTA's share of all chunks. No share is empty: with fewer chunks than CTAs the last ones have none, and parts.cta is
// not below parts.ctas.parts.
SCOREMOD_FUNCTION OpenParts share_of_cta(const AttentionArguments& call, const long long* sums, int cta) {
  const long long total = all_chunks(call, sums);
  OpenParts parts;
  parts.cta = cta;
  parts.floats = (rows_of_head(call) < kQueries ? rows_of_head(call) : kQueries) * kPartRow;
  parts.ctas = {0, total, total < call.blocks ? (int)total : call.blocks};
  if (cta >= parts.ctas.parts) return parts;
  const long long first = parts.ctas.first_of(cta), count = parts.end() - first;
  parts.teams = {first, count, count < kTeams ? (int)count : kTeams};
  return parts;
}

// A tile's partials of teams, or of CTAs, in ascending order.
SCOREMOD_FUNCTION PartList parts_of_teams(const AttentionArguments& call, const OpenParts& parts,
                                          const OpenTile& tile) {
  const long long begin = tile.first < parts.teams.first ? parts.teams.first : tile.first;
  const bool ends = tile.end() <= parts.end();
  const int first = parts.teams.part_of(begin), last = parts.teams.part_of((ends ? tile.end() : parts.end()) - 1);
  return {parts.of_team(call, first, true), last - first + 1, ends};
}
SCOREMOD_FUNCTION PartList parts_of_ctas(const AttentionArguments& call, const OpenParts& parts, const OpenTile& tile) {
  const int first = parts.ctas.part_of(tile.first), last = parts.ctas.part_of(tile.end() - 1);
  return {parts.of_cta(call, first, true), last - first + 1, true};
}

// Stores a merged row of the tile in o; returns whether an output is not finite.
SCOREMOD_FUNCTION bool store_row(const Arguments& p, const KeyShare& own, const MergedRow& merged, int row) {
  const RowOwner of = owner_of(p.call, own.h, own.first_row() + row);
  return is_there(p.call, own.b, of.q) && store_merged(p, merged, own.b, of.h, of.q);
}

// Merges the partials that the tiles name: into o and lse, or those of teams into the CTA's own partial of a tile that
// it shares with others. A warp merges two rows at once, and has loads of several parts of both in flight, because each
// waits for memory twice. First the lanes look at a part each, and then all of them add up each part.
SCOREMOD_FUNCTION void merge_rows(const Arguments& p, const OpenParts& parts, const OpenTile* tiles, int count,
                                  bool of_teams, int* not_finite) {
  constexpr int kAtOnce = 2, kPartsAtOnce = MergedRow::kFours > 2 ? 2 : 4;
  const int tile_rows = rows_of_head(p.call) < kQueries ? rows_of_head(p.call) : kQueries, end = count * tile_rows;
#pragma unroll 1
  for (int first = threadIdx.x / 32; first < end; first += kAtOnce * kWarps) {
    MergedRow rows[kAtOnce];
    PartList lists[kAtOnce];
    int most = 0;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int number = first + i * kWarps < end ? first + i * kWarps : first, row = number % tile_rows;
      const OpenTile& tile = tiles[number / tile_rows];
      lists[i] = tile.merged;
      lists[i].first += row * kPartRow;
      if (first + i * kWarps >= end || row >= rows_of_tile(p.call, tile.own)) lists[i].count = 0;
      rows[i].clear();
      most = larger(most, lists[i].count);
    }
    if (most == 0) continue;
#pragma unroll 1
    for (int part = threadIdx.x % 32; part < most; part += 32)
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const bool there = part < lists[i].count;
        rows[i].look_at(lists[i].at(there ? part : 0, parts.floats), there);
      }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) rows[i].look_at_lanes();
#pragma unroll 1
    for (int part = 0; part < most; part += kPartsAtOnce)
#pragma unroll
      for (int next = 0; next < kPartsAtOnce; ++next)
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const bool there = part + next < lists[i].count;
          rows[i].add(lists[i].at(there ? part + next : 0, parts.floats), there);
        }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (lists[i].count == 0) continue;
      const int number = first + i * kWarps, row = number % tile_rows;
      const OpenTile& tile = tiles[number / tile_rows];
      if (of_teams && parts.is_shared(tile))
        rows[i].store(parts.of_cta(p.call, parts.cta, tile.end() > parts.end()) + row * kPartRow);
      else if (store_row(p, tile.own, rows[i], row))
        not_finite[number / tile_rows] = 1;
    }
  }
}

// Merges the partials of the CTA's teams, and then those of all CTAs that share a tile, where this one came last. All
// threads that have the CTA's rows call it after they stored their partials. Without `by_teams` these are the CTA's.
SCOREMOD_FUNCTION void merge_open_tiles(const Arguments& p, const OpenParts& parts, OpenTile* tiles, int count,
                                        bool by_teams, int* not_finite) {
  const AttentionArguments& call = p.call;
#pragma unroll 1
  for (bool of_teams = by_teams;; of_teams = false) {
    if (!of_teams) order_memory();
    block_barrier();
    if (threadIdx.x < count) {
      OpenTile& tile = tiles[threadIdx.x];
      PartList merged{call.parts, 0, false};
      if (tile.own.b >= 0 && (of_teams || parts.is_shared(tile))) {
        merged = of_teams ? parts_of_teams(call, parts, tile) : parts_of_ctas(call, parts, tile);
        if (!of_teams && !comes_last(call, tile.own, merged.count)) merged.count = 0;
      }
      tile.merged = merged;
    }
    block_barrier();
    if (!of_teams) order_memory();
    merge_rows(p, parts, tiles, count, of_teams, not_finite);
    if (!of_teams) return;
  }
}

// Ends the tiles that several teams share, when all of the CTA's teams have stored their partials.
SCOREMOD_FUNCTION void end_open_tiles(const Arguments& p, const OpenParts& parts, OpenTile* tiles, int* not_finite,
                                      float* scratch) {
  merge_open_tiles(p, parts, tiles, kTeams + 1, true, not_finite);
  block_barrier();
#pragma unroll 1
  for (int i = 0; i <= kTeams; ++i)
    if (tiles[i].own.b >= 0 && not_finite[i] != 0) rows_again(p, tiles[i].own, scratch, ConsumerThreads());
}
