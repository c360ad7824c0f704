// hopper_persistent_backward: hopper_backward_fused as a persistent kernel, whose CTAs take tiles of keys one after the
// other. While the consumers store dk and dv of one tile, the producers load the first queries of the next one, and its
// keys. What a tile's place is found by, and the beginning of its walk, the producers find ahead too.
#pragma once

#include "backend/kernels/hopper/backward_fused.cuh"

static_assert(!kPersistent || (kPart == kStep && !kLoadsBias && kTargets == 0 && !kHeadsTakeTurns),
              "other backwards have a CTA for each tile of keys");
// dk and dv go to memory through the tiles of gradients, since the next keys are loaded to those of k and v.
static_assert(!kPersistent || kKeysStorage.gradient_tiles * kKeysStorage.gradient_tile.bytes >=
                                  (kDimQk > kDimV ? kKeysStorage.k_tile.bytes : kKeysStorage.v_tile.bytes),
              "the accumulators of a tile fit");

// Loads a work tile: its first queries as soon as the ring has room, its keys as soon as the last tile's are free.
SCOREMOD_FUNCTION void produce_key_item(const MappedArguments& all, const KeyTiles& tiles, Ring<kStages>& ring,
                                        const KeyPlace& place, int count) {
  const AttentionArguments& call = all.rest.call;
  QuerySteps steps;
  unsigned some = 0, full = 0;
  bool any = false;
  const int queries = queries_of(call, place.b);
  const auto produce = [&] {
    produce_step(all, tiles, ring, place.b, steps.h, steps.first_query(), queries);
    ring.advance();
  };
  if (place.key_tile >= 0) {
    steps.begin(call, place.b, place.head_kv, place.key_tile);
    some = steps.walk.some;
    full = steps.walk.full;
    any = steps.next(call, place.b);
    if (any) produce();
  }
  mbarrier_wait(tiles.own_empty, (count & 1) ^ 1);
  if (threadIdx.x == kThreads) tiles.given[count & 1] = {place, some, full};
  if (any) {
    produce_keys(all, tiles, place);
    while (steps.next(call, place.b)) produce();
  } else if (threadIdx.x == kThreads) {
    // There is nothing to load: zeros are to be written, or the kernel ends.
    arrive(tiles.own_full);
    arrive(tiles.own_full);
  }
}

SCOREMOD_FUNCTION void produce_key_items(const MappedArguments& all, const KeyTiles& tiles) {
  const AttentionArguments& call = all.rest.call;
  const bool alone = one_thread_loads(call);
  if (alone && threadIdx.x >= kThreads + 32) return;
  const int items = call.key_work_tiles * (call.heads_q / call.group);
  Ring<kStages> ring;
  int count = 0;
  for (int number = block_number(); number < items; number = take_item(call, tiles.taken, alone)) {
    const KeyPlace place = key_place(call, number);
    if (!has_no_keys(call, place)) produce_key_item(all, tiles, ring, place, count++);
  }
  produce_key_item(all, tiles, ring, {0, 0, -1}, count);
}

// Reads a work tile that every consumer has, from shared memory at each use, so that it takes no registers between.
SCOREMOD_FUNCTION KeyPlace item_at(const volatile KeyPlace& item) {
  return {uniform(item.b), uniform(item.head_kv), uniform(item.key_tile)};
}

struct PersistentGroup : FusedGroup {
  SCOREMOD_MEMBER PersistentGroup(const Arguments& arguments, const KeyTiles& key_tiles)
      : FusedGroup(arguments, key_tiles) {}

  // Walks over the queries of a work tile, whose keys are there.
  SCOREMOD_MEMBER void run(const GivenKeys& given) {
    const KeyPlace place = item_at(given.place);
    steps.begin_with(p.call, place, uniform(given.some), uniform(given.full));
    if (begin_steps(place.b, place.key_tile)) {
      begin_sums();
      take_half();
      take_steps();
      consumer_release(tiles.empty + ring.stage);
      ring.advance();
    }
    consumer_release(tiles.own_empty);
    end_all();
  }
};

SCOREMOD_FUNCTION void consume_key_items(const Arguments& p, const KeyTiles& tiles) {
  scheduler_begin();
  Ring<kStages> ring;
  for (int count = 0;; ++count) {
    const GivenKeys& given = tiles.given[count & 1];
    mbarrier_wait(tiles.own_full, count & 1);
    if (uniform(given.place.key_tile) < 0) return;
    PersistentGroup keys(p, tiles);
    keys.ring = ring;
    keys.run(given);
    ring = keys.ring;
    store_keys<true, true>(p, keys, item_at(given.place), tiles.gradients, tiles.gradients, (float*)tiles.gradients);
  }
}

/*{kernel hopper_persistent_backward}*/
SCOREMOD_KERNEL(kThreads + kGroup, 1) hopper_persistent_backward(SCOREMOD_MAPPED_ARGUMENT all) {
  SCOREMOD_SHARED(unaligned);
  const KeyTiles tiles(aligned_tiles(unaligned));
  if (threadIdx.x == 0) tiles.begin();
  cta_sync();
  if (threadIdx.x >= kThreads) {
    setmaxnreg_dec<kProducerRegisters>();
    produce_key_items(all, tiles);
  } else {
    setmaxnreg_inc<kConsumerRegisters>();
    consume_key_items(all.rest, tiles);
  }
}
/*{}*/
