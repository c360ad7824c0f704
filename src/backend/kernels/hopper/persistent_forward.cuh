// hopper_persistent_forward: hopper_forward as a persistent kernel, whose CTAs take work tiles one after the other. A
// tile's result does not depend on its CTA. While the consumers end one tile, the producers load for the next, and
// consumer warpgroups do not wait for one another between them.
#pragma once

#include "backend/kernels/hopper/forward.cuh"

// A CTA counts its work tiles. Number `count` lies in this stage of q, whose mbarriers are in this phase.
SCOREMOD_FUNCTION int query_stage(int count) { return count % kQueryStages; }
SCOREMOD_FUNCTION int query_phase(int count) { return count / kQueryStages % 2; }
SCOREMOD_FUNCTION ItemNote* note_of(const ForwardTiles& tiles, int count) {
  return tiles.notes + count % ForwardTiles::kNotes;
}

SCOREMOD_FUNCTION void produce_items(const MappedArguments& all, const ForwardTiles& tiles) {
  const AttentionArguments& call = all.rest.call;
  const bool alone = one_thread_loads(call);
  if (alone && threadIdx.x >= kThreads + 32) return;
  Ring<kStages> ring;
  int count = 0;
  for (int number = block_number();; number = take_item(call, tiles.taken, alone)) {
    const bool is_last = number >= call.heads_q * call.query_work_tiles;
    const QueryPlace item = is_last ? QueryPlace{0, 0, -1} : query_place(call, number);
    if (!is_last && is_over(call, item)) continue;
    TileWalk<false> walk;
    walk.some = walk.full = 0;
    if (!is_last) walk.begin(call, item.b, item.h, item.query_tile);
    const int stage = query_stage(count);
    Barrier* const full = tiles.q_full + stage;
    mbarrier_wait(tiles.q_empty + stage, query_phase(count) ^ 1);
    if (threadIdx.x == kThreads) tiles.given[stage] = {item, walk.some, walk.full};
    if (!is_last && walk.next(call, item.b, item.h)) {
      fill_tile<kQueries, kDimQk>(tiles.q + stage * (ForwardTiles::kQBytes / 2), call.q, all.q, full, item.b, item.h,
                                  item.query_tile * kQueries, queries_of(call, item.b));
      produce_keys(all, tiles, walk, ring, item.b, item.h, item.query_tile);
    } else if (threadIdx.x == kThreads) {
      arrive(full);  // without a tile: its zeros and LSEs are to be written
    }
    if (is_last) return;
    ++count;
  }
}

// Reads a work tile that every consumer has, from shared memory at each use, so that it takes no registers between.
SCOREMOD_FUNCTION QueryPlace item_at(const volatile QueryPlace& item) {
  return {uniform(item.b), uniform(item.h), uniform(item.query_tile)};
}

// All consumers call it, each after its part of the next work tile. It computes the rows of tile `count` once more if
// one of its sums was not finite. So no warpgroup waits for another at the end of a tile. A note is overwritten kNotes
// tiles later: its stage of q is loaded after every consumer has left tile count + 1, and has been here.
SCOREMOD_FUNCTION void look_back(const Arguments& p, const ForwardTiles& tiles, int count, Half* scratch) {
  mbarrier_wait(tiles.q_empty + query_stage(count), query_phase(count));
  const ItemNote* const note = note_of(tiles, count);
  if (uniform(note->count) != count) return;
  const QueryPlace item = item_at(note->item);
  forward_rows(p, scratch, item.b, item.h, item.query_tile);
}

// Computes the warpgroup's rows of a work tile, which lies in `own`; notes if a sum is not finite.
SCOREMOD_FUNCTION void consume_item(const Arguments& p, const ForwardTiles& tiles, const GivenItem& given, Half* own,
                                    Ring<kStages>& ring, int count) {
  const QueryPlace item = item_at(given.item);
  const int first_query = item.query_tile * kQueries + threadIdx.x / 32 * 16;
  TileWalk<false> walk;
  walk.begin_with(p.call, item.b, item.query_tile, uniform(given.some), uniform(given.full));
  SoftmaxRows rows;
  rows.clear();
  if (walk.next(p.call, item.b, item.h)) {
    consume_keys(p, tiles, own, rows, walk, ring, item.b, item.h, first_query);
    consumer_release(tiles.v_empty + ring.stage);
    ring.advance();
  }
  const QueryPlace same = item_at(given.item);
  const bool not_finite =
      store_forward(p, own, rows, same.b, same.h, same.query_tile * kQueries + threadIdx.x / 32 * 16);
  if (ballot(not_finite) != 0 && threadIdx.x % 32 == 0) *note_of(tiles, count) = {count, same};
}

SCOREMOD_FUNCTION void consume_items(const Arguments& p, const ForwardTiles& tiles) {
  Ring<kStages> ring;
  scheduler_begin();
  for (int count = 0;; ++count) {
    const int stage = query_stage(count);
    Half* const own = tiles.q + stage * (ForwardTiles::kQBytes / 2);
    mbarrier_wait(tiles.q_full + stage, query_phase(count));
    const bool is_last = uniform(tiles.given[stage].item.query_tile) < 0;
    if (!is_last) consume_item(p, tiles, tiles.given[stage], own, ring, count);
    if (count > 0) look_back(p, tiles, count - 1, own);
    if (is_last) return;
    // Writes to the tile of q through the generic proxy come before the next TMA load to it (fence.proxy.async).
    fence_proxy_async();
    consumer_release(tiles.q_empty + stage);
  }
}

SCOREMOD_KERNEL(32, 1) hopper_begin_items(SCOREMOD_ARGUMENT p) {
  if (threadIdx.x == 0) *p.call.taken = 0;
}

SCOREMOD_KERNEL(kThreads + kGroup, 1) hopper_persistent_forward(SCOREMOD_MAPPED_ARGUMENT all) {
  SCOREMOD_SHARED(unaligned);
  const ForwardTiles tiles(aligned_tiles(unaligned));
  if (threadIdx.x == 0) tiles.begin();
  cta_sync();
  if (threadIdx.x >= kThreads) {
    setmaxnreg_dec<kProducerRegisters>();
    produce_items(all, tiles);
  } else {
    setmaxnreg_inc<kConsumerRegisters>();
    consume_items(all.rest, tiles);
  }
}
