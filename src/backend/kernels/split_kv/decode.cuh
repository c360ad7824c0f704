// split_kv_decode is the decode kernel: split-KV with pack-GQA. One CTA has kQueries rows of the heads that share
// a KV head, and one of call.splits shares of its keys. Its teams of warps walk over different keys.
#pragma once

#include "backend/kernels/split_kv/team_keys.cuh"

constexpr DecodeStorage kDecodeStorage{kDimQk, kDimV, kQueries, kKeys, kStages, kTeams, kThreads};

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
