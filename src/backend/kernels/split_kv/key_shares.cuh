// How the persistent decode kernel shares out all keys that there are, by lengths in device memory. The chunks of all
// sequences, KV heads and tiles of rows have numbers, one sequence after the other. CTAs take even shares of them, and
// so do a CTA's teams.
#pragma once

#include "backend/kernels/split_kv/packed_rows.cuh"

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
// Tiles of rows of a batch, of all its KV heads.
SCOREMOD_FUNCTION long long tiles_of_batch(const AttentionArguments& call) {
  return (long long)kv_heads_of(call) * call.query_tiles;
}

// Batches whose chunks one thread adds up.
SCOREMOD_FUNCTION int batches_of_thread(const AttentionArguments& call) {
  return (call.batch + kThreads - 1) / kThreads;
}
// Finds how many chunks there are in the batches of each thread and those before. All threads of the CTA call it.
SCOREMOD_FUNCTION void add_up_chunks(const AttentionArguments& call, long long* sums) {
  const int thread = threadIdx.x, each = batches_of_thread(call);
  long long own = 0;
  for (int b = thread * each; b < (thread + 1) * each && b < call.batch; ++b)
    own += tiles_of_batch(call) * chunks_of_batch(call, b).count;
  sums[thread] = own;
  block_barrier();
#pragma unroll 1
  for (int distance = 1; distance < kThreads; distance *= 2) {
    const long long before = thread >= distance ? sums[thread - distance] : 0;
    block_barrier();
    sums[thread] += before;
    block_barrier();
  }
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

// Steps through the tiles of rows that have the chunks of a share.
struct PieceWalk {
  long long at, end, batch_first;  // numbers of chunks
  int b;
  BatchChunks chunks;

  SCOREMOD_MEMBER void begin(const AttentionArguments& call, const long long* sums, long long first, long long last) {
    at = first;
    end = last;
    int low = 0, high = kThreads - 1;  // the first thread whose sum is greater
    while (low < high) {
      const int middle = (low + high) / 2;
      if (sums[middle] > at)
        high = middle;
      else
        low = middle + 1;
    }
    batch_first = low == 0 ? 0 : sums[low - 1];
    b = low * batches_of_thread(call);
    find_batch(call);
  }
  SCOREMOD_MEMBER void find_batch(const AttentionArguments& call) {
    for (; b < call.batch; ++b) {
      chunks = chunks_of_batch(call, b);
      const long long of_batch = tiles_of_batch(call) * chunks.count;
      if (at < batch_first + of_batch) return;
      batch_first += of_batch;
    }
  }
  SCOREMOD_MEMBER bool next(const AttentionArguments& call, TilePiece& piece) {
    if (at >= end) return false;
    if (at >= batch_first + tiles_of_batch(call) * chunks.count) {
      batch_first += tiles_of_batch(call) * chunks.count;
      ++b;
      find_batch(call);
    }
    // Lengths that somebody changes meanwhile lead nowhere else.
    if (b >= call.batch) return false;
    const int tile = (int)((at - batch_first) / chunks.count), kv_head = tile / call.query_tiles;
    piece.own = {b, kv_head, kv_head * call.group, tile % call.query_tiles, 0};
    piece.all = chunks.all;
    piece.first = batch_first + (long long)tile * chunks.count;
    piece.count = chunks.count;
    piece.begin = (int)(at - piece.first);
    const long long rest = end - piece.first;
    piece.end = rest < chunks.count ? (int)rest : chunks.count;
    at = piece.first + piece.end;
    return true;
  }
};
