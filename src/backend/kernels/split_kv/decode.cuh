// split_kv_decode is the decode kernel: split-KV with pack-GQA. One CTA has kQueries rows of the heads that share
// a KV head, and one of call.splits shares of its keys. Its teams of warps walk over different keys.
#pragma once

#include "backend/kernels/shared/products.cuh"
#include "backend/kernels/split_kv/partials.cuh"

// A team of warps that walks over tiles of keys, of which it has kStages in shared memory; all but one are in flight
// (cp.async).

constexpr int kTeamWarps = kWarps / kTeams, kTeamThreads = 32 * kTeamWarps;
constexpr PaddedTile kKeyTile{kKeys, kDimQk, 2}, kValueTile{kKeys, kDimV, 2};
constexpr int kKeyHalves = kKeyTile.bytes / (int)sizeof(Half);
constexpr int kStageHalves = kKeyHalves + kValueTile.bytes / (int)sizeof(Half);

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

// The team's tiles in shared memory: its rows of q, and its stages, each of k and then v. `warp_row` is the first of
// the warp's rows.
struct TeamTiles {
  Half *q, *stages;
  int team, thread, warp_row;

  SCOREMOD_MEMBER TeamTiles(Half* all_q, Half* own_stages)
      : q(all_q),
        stages(own_stages),
        team(threadIdx.x / kTeamThreads),
        thread(threadIdx.x % kTeamThreads),
        warp_row(thread / 32 * kWarpRows) {}
};

// Adds the keys that `walk` finds to the team's rows. fill_queries() begins copies of q, and meet_queries() returns
// when all of q is there. All of the team's copies are complete in the end, but threads may still read the last tile.
template <class Fill, class Meet>
SCOREMOD_FUNCTION void add_keys(const Arguments& p, const TeamTiles& tiles, const KeyShare& own, KeyWalk& walk,
                                int keys, SoftmaxRows& rows, const Fill& fill_queries, const Meet& meet_queries) {
  const AttentionArguments& call = p.call;
  const Rows ks = rows_of(call.k, own.b, own.kv_head), vs = rows_of(call.v, own.b, own.kv_head);
  // The next tile's number, and whether it is partial, as one; or -1.
  const auto fetch = [&](int stage) {
    int found = -1;
    if (walk.next(p, own.b)) {
      Half* const k_tile = tiles.stages + stage * kStageHalves;
      load_keys<kDimQk>(k_tile, ks, walk.tile * kKeys, keys, tiles.thread);
      load_keys<kDimV>(k_tile + kKeyHalves, vs, walk.tile * kKeys, keys, tiles.thread);
      found = walk.tile * 2 + (walk.partial ? 1 : 0);
    }
    return found;
  };
  int ahead[kStages];
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    ahead[i] = fetch(i);
    // Behind the first keys, which take longest to come.
    if (i == 0) fill_queries();
    end_copies();
  }
  wait_for_copies_but<kStages - 2>();
  meet_queries();
  for (int stage = 0; ahead[0] >= 0; stage = stage + 1 == kStages ? 0 : stage + 1) {
    wait_for_copies_but<kStages - 2>();
    team_barrier<kTeamWarps>(tiles.team);  // k and v are there, and nobody reads the last ones any more
    ahead[kStages - 1] = fetch(stage == 0 ? kStages - 1 : stage - 1);
    end_copies();
    const Half* const k_tile = tiles.stages + stage * kStageHalves;
    Sums<kRowTiles, kKeys> scores;
    scores.clear();
    add_product_of_rows<kDimQk>(scores, tiles.q + tiles.warp_row * row_length(kDimQk), k_tile);
    online_softmax_step(p, scores, rows, ahead[0] % 2 != 0, own.b, own.h, own.first_row() + tiles.warp_row,
                        ahead[0] / 2 * kKeys);
    add_product<kDimV>(rows.output, scores, k_tile + kKeyHalves);
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) ahead[i] = ahead[i + 1];
  }
  wait_for_copies();
}

constexpr DecodeStorage kDecodeStorage{kDimQk, kDimV, kQueries, kKeys, kStages, kTeams, kThreads};

/*{kernel split_kv_decode}*/
SCOREMOD_KERNEL(kThreads, kBlocks) split_kv_decode(SCOREMOD_ARGUMENT p) {
  SCOREMOD_SHARED(shared);
  const AttentionArguments& call = p.call;
  const KeyShare own = share_of(call, blockIdx.x);
  const int team = threadIdx.x / kTeamThreads;
  const TeamTiles tiles((Half*)(shared + kDecodeStorage.q),
                        (Half*)(shared + kDecodeStorage.rings) + team * kStages * kStageHalves);
  const int keys = keys_of(call, own.b);
  KeyWalk walk;
  walk.begin(call, own, keys, team);
  SoftmaxRows rows;
  rows.clear();
  add_keys(
      p, tiles, own, walk, keys, rows,
      [&] { load_queries(call, own, [&](int row, int dim) { return tiles.q + row * row_length(kDimQk) + dim; }); },
      [] { block_barrier(); });
  block_barrier();  // nobody reads a tile any more
  end_rows(p, rows, own, team, tiles.warp_row, (float*)(shared + kDecodeStorage.parts));
}
/*{}*/
