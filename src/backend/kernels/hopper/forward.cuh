// The Hopper forward by WGMMA and TMA. A producer warpgroup loads tiles of keys ahead by TMA, and consumer warpgroups
// have 64 queries each. While one computes the softmax of a tile, its WGMMA of the last tile's weights and v runs, and
// so do the other warpgroups' WGMMAs. A persistent kernel has the same main loop.
#pragma once

#include "backend/kernels/hopper/tiles.cuh"
#include "backend/kernels/shared/softmax.cuh"

// Whether a varlen sequence ends before the work tile.
SCOREMOD_FUNCTION bool is_over(const AttentionArguments& call, const QueryPlace& item) {
  return kRaggedQueries && item.query_tile * kQueries >= queries_of(call, item.b);
}

constexpr HopperForwardStorage kForwardStorage{kDimQk,  kDimV,        kQueries,    kKeys,
                                               kStages, kQueryStages, kPersistent, kLoadsBias};

struct ForwardTiles {
  Half *q, *k, *v;
  Half* copied;  // tiles of an operand, where kLoadsBias
  Barrier *q_full, *q_empty, *k_full, *k_empty, *v_full, *v_empty, *copied_full, *copied_empty;
  GivenItem* given;  // these three of the persistent kernel
  ItemNote* notes;
  int* taken;

  static constexpr int kNotes = kForwardStorage.notes_count;
  static constexpr int kQBytes = kForwardStorage.q_tile.bytes, kKBytes = kForwardStorage.k_tile.bytes,
                       kVBytes = kForwardStorage.v_tile.bytes, kCopiedBytes = kForwardStorage.copied_tile.bytes;

  SCOREMOD_MEMBER explicit ForwardTiles(unsigned char* shared) {
    constexpr HopperForwardStorage kAt = kForwardStorage;
    q = (Half*)(shared + kAt.q);
    k = (Half*)(shared + kAt.k);
    v = (Half*)(shared + kAt.v);
    copied = (Half*)(shared + kAt.copied);
    q_full = (Barrier*)(shared + kAt.q_full);
    q_empty = (Barrier*)(shared + kAt.q_empty);
    k_full = (Barrier*)(shared + kAt.k_full);
    k_empty = (Barrier*)(shared + kAt.k_empty);
    v_full = (Barrier*)(shared + kAt.v_full);
    v_empty = (Barrier*)(shared + kAt.v_empty);
    copied_full = (Barrier*)(shared + kAt.copied_full);
    copied_empty = (Barrier*)(shared + kAt.copied_empty);
    given = (GivenItem*)(shared + kAt.given);
    notes = (ItemNote*)(shared + kAt.notes);
    taken = (int*)(shared + kAt.taken);
  }
  SCOREMOD_MEMBER void begin() const {
    for (int i = 0; i < kQueryStages; ++i) {
      mbarrier_init(q_full + i, 1);
      if (kPersistent) mbarrier_init(q_empty + i, kWarps);
    }
    for (int i = 0; kPersistent && i < kNotes; ++i) notes[i].count = -1;
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(k_full + i, 1);
      mbarrier_init(v_full + i, 1);
      mbarrier_init(k_empty + i, kWarps);
      mbarrier_init(v_empty + i, kWarps);
      if (!kLoadsBias) continue;
      mbarrier_init(copied_full + i, 1);
      mbarrier_init(copied_empty + i, kWarps);
    }
    fence_mbarrier_init();
  }
};

// One thread issues all TMA loads; the others of its warpgroup then have nothing to do.
SCOREMOD_FUNCTION bool one_thread_loads(const AttentionArguments& call) {
  return call.q.aligned && call.k.aligned && call.v.aligned && (!kLoadsBias || call.copied.aligned);
}

// Loads the operand's numbers for a tile of scores.
SCOREMOD_FUNCTION void produce_copied(const MappedArguments& all, const ForwardTiles& tiles, const Ring<kStages>& ring,
                                      int b, int h, int query_tile, int first_key) {
  const AttentionArguments& call = all.rest.call;
  mbarrier_wait(tiles.copied_empty + ring.stage, ring.phase ^ 1);
  fill_tile<kQueries, kKeys>(tiles.copied + ring.stage * (ForwardTiles::kCopiedBytes / 2), call.copied, all.copied,
                             tiles.copied_full + ring.stage, call.copied.batch == 0 ? 0 : b,
                             call.copied.head == 0 ? 0 : h, query_tile * kQueries, call.seq_q, first_key, call.seq_kv);
}

// Loads the tiles of k and v from the walk's on.
SCOREMOD_FUNCTION void produce_keys(const MappedArguments& all, const ForwardTiles& tiles, TileWalk<false>& walk,
                                    Ring<kStages>& ring, int b, int h, int query_tile) {
  const AttentionArguments& call = all.rest.call;
  const int keys = keys_of(call, b);
  do {
    const int first = walk.tile * kKeys, head = h / call.group;
    const int k_page = page_of_box(call.k, b, first, keys), v_page = page_of_box(call.v, b, first, keys);
    mbarrier_wait(tiles.k_empty + ring.stage, ring.phase ^ 1);
    fill_keys<kDimQk, false>(tiles.k + ring.stage * (ForwardTiles::kKBytes / 2), call.k, all.k,
                             tiles.k_full + ring.stage, b, head, first, keys, k_page);
    if (kLoadsBias) produce_copied(all, tiles, ring, b, h, query_tile, first);
    mbarrier_wait(tiles.v_empty + ring.stage, ring.phase ^ 1);
    fill_keys<kDimV, true>(tiles.v + ring.stage * (ForwardTiles::kVBytes / 2), call.v, all.v, tiles.v_full + ring.stage,
                           b, head, first, keys, v_page);
    ring.advance();
  } while (walk.next(call, b, h));
}

// A tile of an operand in shared memory, from which a thread reads the numbers of its scores.
struct CopiedTile {
  static constexpr bool kThere = true;
  Half* tile;

  SCOREMOD_MEMBER CopiedPair pair(int half, int n) const {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + half * 8 + lane / 4;
    const unsigned both = *(const unsigned*)(word_of_tile<kQueries>(tile, row, n * 8) + lane % 4 * 2);
    return {{float_of((Half)(both & 0xffffu)), float_of((Half)(both >> 16))}};
  }
};

// modify_tile(): score_mod, mask_mod and row max of a tile of scores. A TMA-loaded bias is at the ring's stage.
SCOREMOD_FUNCTION bool modify_scores(const Arguments& p, const ForwardTiles& tiles, const Ring<kStages>& ring,
                                     Sums<1, kKeys>& scores, SoftmaxRows& rows, float (&factors)[1][2], bool partial,
                                     int b, int h, int first_query, int first_key) {
  if constexpr (kLoadsBias) {
    mbarrier_wait(tiles.copied_full + ring.stage, ring.phase);
    const CopiedTile copied{tiles.copied + ring.stage * (ForwardTiles::kCopiedBytes / 2)};
    const bool rescale = modify_tile(p, scores, rows, factors, partial, b, h, first_query, first_key, copied);
    consumer_release(tiles.copied_empty + ring.stage);
    return rescale;
  } else {
    return modify_tile(p, scores, rows, factors, partial, b, h, first_query, first_key);
  }
}

// Main loop of a consumer warpgroup over the walk's tiles of keys, as in FlashAttention-3. A tile's softmax overlaps P
// V of the last one (intra-warpgroup overlap). Warpgroups take turns to issue WGMMAs, so that one's softmax overlaps
// the other's WGMMAs (ping-pong). Its queries lie in tile `own`, and `first_query` is the first of the warp's 16.
// - scores: fp32 accumulators of S = Q K^T, which become modified scores, and then P = exp2(S - row max).
// - weights: P in 16 bits, the left operand of the WGMMA of P V.
// - rows: unnormalized accumulators of O (rows.output), and each row's running max and sum.
// - walk: the tiles of keys that the mask leaves. A `partial` one needs the mask for each score.
// - ring: the stage of k and v in shared memory that comes next, and the phase of its mbarriers.
SCOREMOD_FUNCTION void consume_keys(const Arguments& p, const ForwardTiles& tiles, Half* own, SoftmaxRows& rows,
                                    TileWalk<false>& walk, Ring<kStages>& ring, int b, int h, int first_query) {
  const AttentionArguments& call = p.call;
  // Matrix descriptors of WGMMA: 64 rows of q for each warpgroup, and the first stages of k and v.
  const unsigned q = moved_by(tile_view(own, kQueries), group_number() * 64 * 128);
  const unsigned k = tile_view(tiles.k, kKeys), v = tile_view(tiles.v, kKeys);
  Sums<1, kKeys> scores;
  unsigned weights[kKeys / 16][4];
  float factors[1][2];  // by which a row's O so far is rescaled
  // The prologue computes S = Q K^T and the softmax of the first tile.
  mbarrier_wait(tiles.k_full + ring.stage, ring.phase);  // TMA has loaded K
  scheduler_wait();                                      // this warpgroup's turn to issue
  wgmma_fence();
  issue_wgmma_abt<kDimQk, kQueries, kKeys>(scores, q, moved_by(k, ring.stage * ForwardTiles::kKBytes));  // S = Q K^T
  wgmma_commit();
  scheduler_pass();  // the other warpgroup's turn
  int first_key = walk.tile * kKeys;
  bool partial = walk.partial, more = walk.next(call, b, h);  // finds the next tile while the WGMMA runs
  wgmma_wait<0>();
  fence_operand(scores.at[0]);
  consumer_release(tiles.k_empty + ring.stage);  // the producer may overwrite K
  modify_scores(p, tiles, ring, scores, rows, factors, partial, b, h, first_query, first_key);
  exponentiate(p, scores, rows, b, h, first_query, first_key);
  round_to_16bit<kKeys>(weights, scores);
  while (more) {
    const Ring<kStages> last = ring;
    ring.advance();
    // Issues S = Q K^T of this tile.
    mbarrier_wait(tiles.k_full + ring.stage, ring.phase);
    scheduler_wait();
    fence_operand(weights);
    fence_operand(rows.output.at[0]);
    wgmma_fence();
    issue_wgmma_abt<kDimQk, kQueries, kKeys>(scores, q, moved_by(k, ring.stage * ForwardTiles::kKBytes));
    wgmma_commit();
    // Issues O += P V of the last tile.
    mbarrier_wait(tiles.v_full + last.stage, last.phase);
    wgmma_fence();
    issue_wgmma_ab<kDimV, kKeys>(rows.output, weights, moved_by(v, last.stage * ForwardTiles::kVBytes));
    wgmma_commit();
    scheduler_pass();
    first_key = walk.tile * kKeys;
    partial = walk.partial;
    more = walk.next(call, b, h);
    // S is complete, and K's stage is free. While O += P V runs, this tile's score_mod, mask_mod and row max do.
    wgmma_wait<1>();
    fence_operand(scores.at[0]);
    consumer_release(tiles.k_empty + ring.stage);
    const bool rescale = modify_scores(p, tiles, ring, scores, rows, factors, partial, b, h, first_query, first_key);
    // O += P V is complete, and V's stage is free. It is waited for before the exponentials: these, sums and roundings
    // overlap if no branch is between them, and the registers of the last P are free by now.
    wgmma_wait<0>();
    fence_operand(rows.output.at[0]);
    consumer_release(tiles.v_empty + last.stage);
    if (rescale) rescale_output(rows, factors);
    exponentiate(p, scores, rows, b, h, first_query, first_key);
    round_to_16bit<kKeys>(weights, scores);
  }
  // The epilogue adds P V of the last tile. A persistent kernel then gives V's stage back.
  mbarrier_wait(tiles.v_full + ring.stage, ring.phase);
  fence_operand(weights);
  fence_operand(rows.output.at[0]);
  wgmma_fence();
  issue_wgmma_ab<kDimV, kKeys>(rows.output, weights, moved_by(v, ring.stage * ForwardTiles::kVBytes));
  wgmma_commit();
  wgmma_wait<0>();
  fence_operand(rows.output.at[0]);
}

// Stores the warpgroup's rows, o through its rows of tile `own`. Returns whether an output is not finite.
SCOREMOD_FUNCTION bool store_forward(const Arguments& p, Half* own, SoftmaxRows& rows, int b, int h, int first_query) {
  const AttentionArguments& call = p.call;
  float factors[1][2];
  const bool not_finite = close_softmax(p, rows, factors, b, h, first_query);
  store_through_tile<kDimV, kDimQk>(rows.output, factors, rows_of<Output>(call.o, b, h), own, first_query,
                                    queries_of(call, b));
  return not_finite;
}

// All consumers compute the tile's rows once more, one after the other, with a tile of q as scratch.
SCOREMOD_FUNCTION void forward_rows(const Arguments& p, Half* scratch, int b, int h, int query_tile) {
  const int queries = queries_of(p.call, b);
  for (int i = 0; i < kQueries && query_tile * kQueries + i < queries; ++i)
    forward_row(p, (float*)scratch, b, h, query_tile * kQueries + i);
}

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

/*{kernel hopper_forward}*/
// attention_forward with WGMMA and TMA, a CTA for each tile of queries of a batch and head.
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
/*{}*/

/*{kernel hopper_persistent_forward}*/
// hopper_forward as a persistent kernel, whose CTAs take work tiles one after the other. A tile's result does not
// depend on its CTA. While the consumers end one tile, the producers load for the next, and consumer warpgroups do not
// wait for one another between them.

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
/*{}*/
