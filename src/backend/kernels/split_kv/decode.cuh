// split_kv_decode is the decode kernel: split-KV with pack-GQA. One CTA has kQueries rows of the heads that share
// a KV head, and one of call.splits shares of its keys. Its teams of warps walk over different keys. Each team has
// kStages tiles of k and v, and all but one are in flight (cp.async).
#pragma once

#include "backend/kernels/shared/products.cuh"
#include "backend/kernels/split_kv/partials.cuh"

constexpr int kTeamWarps = kWarps / kTeams, kTeamThreads = 32 * kTeamWarps;
constexpr DecodeStorage kDecodeStorage{kDimQk, kDimV, kQueries, kKeys, kStages, kTeams, kThreads};
constexpr int kKeyHalves = kDecodeStorage.k_tile.bytes / (int)sizeof(Half);
constexpr int kStageHalves = kDecodeStorage.stage_bytes / (int)sizeof(Half);

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
    copy_line_ahead(to + i * row_length(kDim), there ? at : from.data, there ? 16 : 0);
    at += kRows * from.row;
  }
}

SCOREMOD_KERNEL(kThreads, kBlocks) split_kv_decode(SCOREMOD_ARGUMENT p) {
  SCOREMOD_SHARED(shared);
  const AttentionArguments& call = p.call;
  const KeyShare own = share_of(call, blockIdx.x);
  const int warp = threadIdx.x / 32, team = warp / kTeamWarps, thread = threadIdx.x % kTeamThreads;
  const int warp_row = warp % kTeamWarps * kWarpRows;
  Half* const q_tile = (Half*)(shared + kDecodeStorage.q);
  Half* const stages = (Half*)(shared + kDecodeStorage.rings) + team * kStages * kStageHalves;
  const Rows ks = rows_of(call.k, own.b, own.kv_head), vs = rows_of(call.v, own.b, own.kv_head);
  const int keys = keys_of(call, own.b);

  KeyWalk walk;
  walk.begin(call, own, keys, team);
  // The next tile's number, and whether it is partial, as one; or -1.
  const auto fetch = [&](int stage) {
    int found = -1;
    if (walk.next(p, own.b)) {
      Half* const k_tile = stages + stage * kStageHalves;
      load_keys<kDimQk>(k_tile, ks, walk.tile * kKeys, keys, thread);
      load_keys<kDimV>(k_tile + kKeyHalves, vs, walk.tile * kKeys, keys, thread);
      found = walk.tile * 2 + (walk.partial ? 1 : 0);
    }
    return found;
  };
  int ahead[kStages];
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    ahead[i] = fetch(i);
    // Behind the first keys, which take longest to come.
    if (i == 0) load_queries(call, own, [&](int row, int dim) { return q_tile + row * row_length(kDimQk) + dim; });
    end_copies();
  }
  wait_for_copies_but<kStages - 2>();
  block_barrier();  // q is there
  SoftmaxRows rows;
  rows.clear();
  for (int stage = 0; ahead[0] >= 0; stage = stage + 1 == kStages ? 0 : stage + 1) {
    wait_for_copies_but<kStages - 2>();
    team_barrier<kTeamWarps>(team);  // k and v are there, and nobody reads the last ones any more
    ahead[kStages - 1] = fetch(stage == 0 ? kStages - 1 : stage - 1);
    end_copies();
    const Half* const k_tile = stages + stage * kStageHalves;
    Sums<kRowTiles, kKeys> scores;
    scores.clear();
    add_product_of_rows<kDimQk>(scores, q_tile + warp_row * row_length(kDimQk), k_tile);
    online_softmax_step(p, scores, rows, ahead[0] % 2 != 0, own.b, own.h, own.first_row() + warp_row,
                        ahead[0] / 2 * kKeys);
    add_product<kDimV>(rows.output, scores, k_tile + kKeyHalves);
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) ahead[i] = ahead[i + 1];
  }
  wait_for_copies();
  block_barrier();  // nobody reads a tile any more
  end_rows(p, rows, own, team, warp_row, (float*)(shared + kDecodeStorage.parts));
}
