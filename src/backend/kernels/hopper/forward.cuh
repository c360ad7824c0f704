// hopper_forward: attention_forward with WGMMA and TMA, a CTA for each tile of queries of a batch and head.
#pragma once

#include "backend/kernels/hopper/forward_tiles.cuh"

// Producer warpgroup: loads the tile of q, then a tile of k and one of v for each step of the walk.
SCOREMOD_FUNCTION void produce_forward(const MappedArguments& all, const ForwardTiles& tiles, int b, int h,
                                       int query_tile) {
  const AttentionArguments& call = all.rest.call;
  if (one_thread_loads(call) && threadIdx.x >= kThreads + 32) return;
  TileWalk<false> walk;
  walk.begin(call, b, h, query_tile);
  if (!walk.next(call, b, h)) return;
  fill_tile<kQueries, kDimQk>(tiles.q, call.q, all.q, tiles.q_full, b, h, query_tile * kQueries, queries_of(call, b));
  Ring<kStages> ring;
  produce_keys(all, tiles, walk, ring, b, h, query_tile);
}

// Consumer warpgroup: waits for q, then runs the main loop of QK and PV over the tiles of keys.
SCOREMOD_FUNCTION void consume_forward(const Arguments& p, const ForwardTiles& tiles, SoftmaxRows& rows, int b, int h,
                                       int query_tile) {
  const int first_query = query_tile * kQueries + threadIdx.x / 32 * 16;
  TileWalk<false> walk;
  walk.begin(p.call, b, h, query_tile);
  if (!walk.next(p.call, b, h)) return;
  Ring<kStages> ring;
  scheduler_begin();
  mbarrier_wait(tiles.q_full, 0);
  consume_keys(p, tiles, tiles.q, rows, walk, ring, b, h, first_query);
}

SCOREMOD_KERNEL(kThreads + kGroup, 1) hopper_forward(SCOREMOD_MAPPED_ARGUMENT all) {
  SCOREMOD_SHARED(unaligned);
  const ForwardTiles tiles(aligned_tiles(unaligned));
  const AttentionArguments& call = all.rest.call;
  const QueryPlace item = query_place(call, blockIdx.x);
  const int b = item.b, h = item.h, query_tile = item.query_tile;
  if (is_over(call, item)) return;
  if (threadIdx.x == 0) tiles.begin();
  cta_sync();
  if (threadIdx.x >= kThreads) {
    setmaxnreg_dec<kProducerRegisters>();
    produce_forward(all, tiles, b, h, query_tile);
  } else {
    setmaxnreg_inc<kConsumerRegisters>();
    SoftmaxRows rows;
    rows.clear();
    consume_forward(all.rest, tiles, rows, b, h, query_tile);
    const int first_query = query_tile * kQueries + threadIdx.x / 32 * 16;
    const bool not_finite = store_forward(all.rest, tiles.q, rows, b, h, first_query);
    if (any_of_block(not_finite)) forward_rows(all.rest, tiles.q, b, h, query_tile);
  }
}
