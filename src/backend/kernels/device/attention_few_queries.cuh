// Few queries against many keys. attention_few_queries: one block of threads for kQueries rows of the heads that share
// a head of keys, and for one of call.splits shares of the keys. Its teams of warps walk over different keys, each with
// kStages tiles of k and v of its own, all but one of which are on their way. attention_merge_parts: o and lse of each
// row, from what the shares have left, in ascending order; a single share needs no such kernel.
#pragma once

#include "backend/kernels/device/attention_products.cuh"
#include "backend/kernels/device/attention_softmax.cuh"

constexpr int kTeamWarps = kWarps / kTeams, kTeamThreads = 32 * kTeamWarps;
constexpr int kKeyHalves = kKeys * row_length(kDimQk), kStageHalves = kKeyHalves + kKeys * row_length(kDimV);
// Tiles of keys that a team takes at once, before others' begin; they are 64 keys.
constexpr int kChunkTiles = 64 / kKeys;

// A part is what some keys make of kQueries rows: of each the output so far, as long as kDimV, and from there its
// reference, its sum and its largest value. Eight rows at one column lie in different banks.
constexpr int kPartRow = padded(kDimV) + 8, kPartFloats = kQueries * kPartRow;

SCOREMOD_FUNCTION int key_heads_of(const AttentionArguments& call) { return call.heads_q / call.group; }
// Of a batch's head of keys and a tile of rows: the first of call.splits.
SCOREMOD_FUNCTION float* parts_of(const AttentionArguments& call, int b, int key_head, int row_tile) {
  const long long tile = ((long long)b * key_heads_of(call) + key_head) * call.query_tiles + row_tile;
  return call.parts + tile * call.splits * kPartFloats;
}

// Steps through a team's tiles of keys that are not empty, in ascending order: of all the chunks that the band leaves
// of a row of tiles, every `step`-th is its own, so that teams have like shares of any stretch of keys.
struct KeyWalk {
  int h, first_q, last_q;  // of the row of tiles; h is its first head
  int chunk, end, step;
  unsigned some, full;  // of the chunk's tiles: not empty, full; the tiles that were passed are gone from `some`
  int tile;
  bool partial;

  SCOREMOD_MEMBER void begin(const AttentionArguments& call, int head, int row_tile, int keys, int share, int shares) {
    const int last_row = rows_of_head(call) - 1, last_of_tile = row_tile * kQueries + kQueries - 1;
    h = head;
    first_q = owner_of(call, h, row_tile * kQueries).q;
    last_q = owner_of(call, h, last_of_tile < last_row ? last_of_tile : last_row).q;
    const int first_kv = first_q + call.lowest, end_kv = last_q + call.highest + 1;
    end = ((end_kv < keys ? end_kv : keys) + 63) / 64;
    step = shares;
    chunk = (first_kv > 0 ? first_kv / 64 : 0) + share - shares;
    some = 0;
  }
  SCOREMOD_MEMBER bool next(const Arguments& p, int b) {
    while (some == 0) {
      if (chunk >= end) return false;
      chunk += step;
      if (chunk >= end) return false;
      look(p, b);
    }
    const unsigned lowest = some & (0u - some);
    some ^= lowest;
    partial = (full & lowest) == 0;
    tile = chunk * kChunkTiles + bit_number(lowest);
    return true;
  }

  SCOREMOD_MEMBER void look(const Arguments& p, int b) {
    const int lane = threadIdx.x % 32, at = chunk * kChunkTiles + lane;
    TileState state = kEmptyTile;
    if (lane < kChunkTiles && at < p.call.key_tiles) state = band_state_of(p.call, first_q, last_q, at);
    some = ballot(state != kEmptyTile);
    full = kMask == kScoreMask ? 0u : ballot(state == kFullTile);
    if (kMask == kListedMask && some != 0) look_closely(p, b);
  }
  // Evaluates the mask until every tile is known to have a kept key and a masked one.
  SCOREMOD_MEMBER void look_closely(const Arguments& p, int b) {
    constexpr int kTogether = kKeys < 32 ? kKeys : 32;
    constexpr unsigned kAll = kTogether == 32 ? ~0u : (1u << kTogether % 32) - 1u;
    const int lane = threadIdx.x % 32, last_head = h + (kMaskVariesWithHead ? p.call.group - 1 : 0);
    unsigned kept = 0, masked = 0;
    for (int head = h; head <= last_head; ++head) {
      for (int q = first_q; q <= last_q; ++q) {
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

// The block's rows of q, of as many heads; rows beyond the last are zeros, and so are the dims that pad a row.
SCOREMOD_FUNCTION void load_queries(const AttentionArguments& call, Half* tile, int b, int h, int first_row) {
  constexpr int kWords = padded(kDimQk) / 8;
  const int rows = rows_of_head(call) - first_row, queries = queries_of(call, b);
#pragma unroll 1
  for (int i = threadIdx.x; i < kQueries * kWords; i += kThreads) {
    const int row = i / kWords, dim = i % kWords * 8;
    const RowOwner of = owner_of(call, h, first_row + (row < rows ? row : 0));
    const Rows from = rows_of(call.q, b, of.h);
    const bool there = row < rows && of.q < queries && dim < kDimQk;
    const Half* const at = there ? from.at(of.q) : from.data;
    Half* const to = tile + row * row_length(kDimQk) + dim;
    if (from.aligned) {
      copy_ahead<16>(to, there ? at + dim : from.data, there ? 16 : 0);
    } else {
      for (int j = 0; j < 8; ++j) to[j] = there && dim + j < kDimQk ? at[(dim + j) * from.dim] : (Half)0;
    }
  }
}

// load_tile() of a team's keys, in as few instructions as the copies may take.
template <int kDim>
SCOREMOD_FUNCTION void load_keys(Half* tile, const Rows& from, int first, int end, int thread) {
  constexpr int kWords = padded(kDim) / 8, kRows = kTeamThreads < kWords ? 1 : kTeamThreads / kWords;
  if (!from.aligned || kTeamThreads % kWords != 0)
    return load_tile<kKeys, kDim, kTeamThreads>(tile, from, first, end, thread);
  // A tile lies in one block of a pool, or each row is looked up.
  constexpr bool kInOnePiece = !kPaged || kBlockRows % kKeys == 0;
  const int row = thread / kWords, dim = thread % kWords * 8;
  const Half* at = from.at(first) + row * from.row + dim;
  Half* const to = tile + row * row_length(kDim) + dim;
#pragma unroll
  for (int i = 0; i < kKeys; i += kRows) {
    const bool there = first + row + i < end && dim < kDim;
    if (!kInOnePiece && there) at = from.at(first + row + i) + dim;
    copy_ahead<16>(to + i * row_length(kDim), there ? at : from.data, there ? 16 : 0);
    at += kRows * from.row;
  }
}

// Of the warp's rows, those of the block's tile from `to` on.
SCOREMOD_FUNCTION void store_part(const SoftmaxRows& rows, float* to) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* const row = to + (m * 16 + half * 8 + lane / 4) * kPartRow;
#pragma unroll
      for (int n = 0; n < padded(kDimV) / 8; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) row[n * 8 + lane % 4 * 2 + i] = rows.output.at[m][n][half * 2 + i];
      float sum = rows.sum[m][half];
      sum += exchange(sum, 1);
      sum += exchange(sum, 2);
      if (lane % 4 != 0) continue;
      row[padded(kDimV)] = rows.reference[m][half];
      row[padded(kDimV) + 1] = sum;
      row[padded(kDimV) + 2] = rows.largest[m][half];
    }
}

// One row of several parts that a warp adds up: a thread has every 32nd output.
struct MergedRow {
  static constexpr int kOutputs = (kDimV + 31) / 32;
  float reference, sum, largest, output[kOutputs];

  // `row` is of the first part, and the same of the next is kPartFloats from there.
  SCOREMOD_MEMBER void merge(const float* row, int parts) {
    const int lane = threadIdx.x % 32;
    reference = largest = -infinity();
    for (int i = 0; i < parts; ++i) {
      const float* const terms = row + (long long)i * kPartFloats + padded(kDimV);
      reference = fmaxf(reference, terms[0]);
      largest = fmaxf(largest, terms[2]);
    }
    const float base = reference == -infinity() ? 0.0f : reference;
    sum = 0.0f;
#pragma unroll
    for (int j = 0; j < kOutputs; ++j) output[j] = 0.0f;
    for (int i = 0; i < parts; ++i) {
      const float* const part = row + (long long)i * kPartFloats;
      const float factor = exp2_of(part[padded(kDimV)] - base);
      sum = multiply_add(part[padded(kDimV) + 1], factor, sum);
#pragma unroll
      for (int j = 0; j < kOutputs; ++j)
        if (lane + 32 * j < kDimV) output[j] = multiply_add(part[lane + 32 * j], factor, output[j]);
    }
  }
  SCOREMOD_MEMBER void store(float* row) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < kOutputs; ++j)
      if (lane + 32 * j < kDimV) row[lane + 32 * j] = output[j];
    if (lane < 3) row[padded(kDimV) + lane] = lane == 0 ? reference : lane == 1 ? sum : largest;
  }
};

// Whether a batch has this query.
SCOREMOD_FUNCTION bool is_there(const AttentionArguments& call, int b, int q) {
  return !kRaggedQueries || q < queries_of(call, b);
}

// Returns whether an output is not finite.
SCOREMOD_FUNCTION bool store_merged(const Arguments& p, const MergedRow& row, int b, int h, int q) {
  const AttentionArguments& call = p.call;
  const int lane = threadIdx.x % 32;
  float sum = row.sum, lse;
  const float factor =
      dropped(call, close_row(kSink ? sink_of(p, h) : -infinity(), row.reference, sum, lse), true) / sum;
  const RowsOf<Output> to = rows_of<Output>(call.o, b, h);
  bool not_finite = !is_finite(sum);
#pragma unroll
  for (int j = 0; j < MergedRow::kOutputs; ++j) {
    const int dim = lane + 32 * j;
    if (dim >= kDimV) continue;
    not_finite = not_finite || !is_finite(row.output[j]);
    store_element(to.at(q) + dim * to.dim, sum == 0.0f ? 0.0f : row.output[j] * factor);
  }
  if (lane == 0) store_row_terms(call, b, h, q, lse, row.largest);
  return not_finite;
}

SCOREMOD_KERNEL(kThreads, kBlocks) attention_few_queries(SCOREMOD_ARGUMENT p) {
  SCOREMOD_SHARED(shared);
  const AttentionArguments& call = p.call;
  // Neighbours have the same keys.
  const int row_tile = blockIdx.x % call.query_tiles, first_row = row_tile * kQueries;
  const int rest = blockIdx.x / call.query_tiles, split = rest % call.splits, head = rest / call.splits;
  const int b = head / key_heads_of(call), key_head = head % key_heads_of(call), h = key_head * call.group;
  const int warp = threadIdx.x / 32, team = warp / kTeamWarps, thread = threadIdx.x % kTeamThreads;
  const int warp_row = warp % kTeamWarps * kWarpRows;
  Half* const q_tile = (Half*)shared;
  Half* const all_stages = q_tile + kQueries * row_length(kDimQk);
  Half* const stages = all_stages + team * kStages * kStageHalves;
  const Rows ks = rows_of(call.k, b, key_head), vs = rows_of(call.v, b, key_head);
  const int keys = keys_of(call, b);

  KeyWalk walk;
  walk.begin(call, h, row_tile, keys, split * kTeams + team, call.splits * kTeams);
  // The next tile's number, and whether it is partial, as one; or -1.
  const auto fetch = [&](int stage) {
    int found = -1;
    if (walk.next(p, b)) {
      Half* const k_tile = stages + stage * kStageHalves;
      load_keys<kDimQk>(k_tile, ks, walk.tile * kKeys, keys, thread);
      load_keys<kDimV>(k_tile + kKeyHalves, vs, walk.tile * kKeys, keys, thread);
      found = walk.tile * 2 + (walk.partial ? 1 : 0);
    }
    end_copies();
    return found;
  };
  load_queries(call, q_tile, b, h, first_row);
  end_copies();
  int ahead[kStages];
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) ahead[i] = fetch(i);
  wait_for_copies_but<kStages - 1>();
  block_barrier();  // q is there
  SoftmaxRows rows;
  rows.clear();
  for (int stage = 0; ahead[0] >= 0; stage = stage + 1 == kStages ? 0 : stage + 1) {
    wait_for_copies_but<kStages - 2>();
    team_barrier<kTeamWarps>(team);  // k and v are there, and nobody reads the last ones any more
    ahead[kStages - 1] = fetch(stage == 0 ? kStages - 1 : stage - 1);
    const Half* const k_tile = stages + stage * kStageHalves;
    Sums<kRowTiles, kKeys> scores;
    scores.clear();
    add_product_of_rows<kDimQk>(scores, q_tile + warp_row * row_length(kDimQk), k_tile);
    soften(p, scores, rows, ahead[0] % 2 != 0, b, h, first_row + warp_row, ahead[0] / 2 * kKeys);
    add_product<kDimV>(rows.output, scores, k_tile + kKeyHalves);
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) ahead[i] = ahead[i + 1];
  }
  wait_for_copies();
  block_barrier();  // nobody reads a tile any more
  float* const parts = (float*)all_stages;
  store_part(rows, parts + team * kPartFloats + warp_row * kPartRow);
  block_barrier();
  float* const to = parts_of(call, b, key_head, row_tile) + (long long)split * kPartFloats;
  bool not_finite = false;
  for (int row = warp; row < kQueries && first_row + row < rows_of_head(call); row += kWarps) {
    const RowOwner of = owner_of(call, h, first_row + row);
    MergedRow merged;
    merged.merge(parts + row * kPartRow, kTeams);
    if (call.splits > 1)
      merged.store(to + row * kPartRow);
    else if (is_there(call, b, of.q))
      not_finite = store_merged(p, merged, b, of.h, of.q) || not_finite;
  }
  if (!any_of_block(not_finite)) return;
  for (int row = 0; row < kQueries && first_row + row < rows_of_head(call); ++row) {
    const RowOwner of = owner_of(call, h, first_row + row);
    if (!is_there(call, b, of.q)) continue;
    forward_row(p, (float*)shared, b, of.h, of.q);
  }
}

// One warp for each row.
SCOREMOD_KERNEL(kThreads, 1) attention_merge_parts(SCOREMOD_ARGUMENT p) {
  SCOREMOD_SHARED(shared);
  const AttentionArguments& call = p.call;
  const long long rows = (long long)call.batch * call.heads_q * call.seq_q, first = (long long)blockIdx.x * kWarps;
  const auto owner = [&](long long number, int& b, int& h, int& q) {
    q = (int)(number % call.seq_q);
    h = (int)(number / call.seq_q % call.heads_q);
    b = (int)(number / call.seq_q / call.heads_q);
  };
  const long long number = first + threadIdx.x / 32;
  int b, h, q;
  bool not_finite = false;
  if (number < rows) {
    owner(number, b, h, q);
  }
  if (number < rows && is_there(call, b, q)) {
    const int key_head = h / call.group, row = q * call.group + h % call.group;
    MergedRow merged;
    merged.merge(parts_of(call, b, key_head, row / kQueries) + row % kQueries * kPartRow, call.splits);
    not_finite = store_merged(p, merged, b, h, q);
  }
  if (!any_of_block(not_finite)) return;
  for (int i = 0; i < kWarps && first + i < rows; ++i) {
    owner(first + i, b, h, q);
    if (!is_there(call, b, q)) continue;
    forward_row(p, (float*)shared, b, h, q);
  }
}
