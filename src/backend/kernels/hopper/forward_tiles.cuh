// The main loop of the Hopper forwards, for the tiles of a batch and head. A producer warpgroup loads tiles of keys
// ahead by TMA, and consumer warpgroups have 64 queries each. While one computes the softmax of a tile, its WGMMA of
// the last tile's weights and v runs, and so do the other warpgroups' WGMMAs.
#pragma once

#include "backend/kernels/hopper/tiles.cuh"
#include "backend/kernels/shared/softmax.cuh"

// Whether a varlen sequence ends before the work tile.
SCOREMOD_FUNCTION bool is_over(const AttentionArguments& call, const QueryPlace& item) {
  return kRaggedQueries && item.query_tile * kQueries >= queries_of(call, item.b);
}

constexpr HopperForwardStorage kForwardStorage{kDimQk,  kDimV,        kQueries,    kKeys,
                                               kStages, kQueryStages, kPersistent, kCopiesOperand};

struct ForwardTiles {
  Half *q, *k, *v;
  Half* copied;  // tiles of an operand, where kCopiesOperand
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
      begin_barrier(q_full + i, 1);
      if (kPersistent) begin_barrier(q_empty + i, kWarps);
    }
    for (int i = 0; kPersistent && i < kNotes; ++i) notes[i].count = -1;
    for (int i = 0; i < kStages; ++i) {
      begin_barrier(k_full + i, 1);
      begin_barrier(v_full + i, 1);
      begin_barrier(k_empty + i, kWarps);
      begin_barrier(v_empty + i, kWarps);
      if (!kCopiesOperand) continue;
      begin_barrier(copied_full + i, 1);
      begin_barrier(copied_empty + i, kWarps);
    }
    publish_barriers();
  }
};

// One thread issues all TMA loads; the others of its warpgroup then have nothing to do.
SCOREMOD_FUNCTION bool one_thread_copies(const AttentionArguments& call) {
  return call.q.aligned && call.k.aligned && call.v.aligned && (!kCopiesOperand || call.copied.aligned);
}

// Loads the operand's numbers for a tile of scores.
SCOREMOD_FUNCTION void produce_copied(const MappedArguments& all, const ForwardTiles& tiles, const Ring<kStages>& ring,
                                      int b, int h, int query_tile, int first_key) {
  const AttentionArguments& call = all.rest.call;
  wait_for(tiles.copied_empty + ring.stage, ring.phase ^ 1);
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
    wait_for(tiles.k_empty + ring.stage, ring.phase ^ 1);
    fill_tile<kKeys, kDimQk>(tiles.k + ring.stage * (ForwardTiles::kKBytes / 2), call.k, all.k,
                             tiles.k_full + ring.stage, b, head, first, keys);
    if (kCopiesOperand) produce_copied(all, tiles, ring, b, h, query_tile, first);
    wait_for(tiles.v_empty + ring.stage, ring.phase ^ 1);
    fill_tile<kKeys, kDimV>(tiles.v + ring.stage * (ForwardTiles::kVBytes / 2), call.v, all.v,
                            tiles.v_full + ring.stage, b, head, first, keys);
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

// modify_tile() for the tile of keys at the ring's stage.
SCOREMOD_FUNCTION bool modify_keys(const Arguments& p, const ForwardTiles& tiles, const Ring<kStages>& ring,
                                   Sums<1, kKeys>& scores, SoftmaxRows& rows, float (&factors)[1][2], bool partial,
                                   int b, int h, int first_query, int first_key) {
  if constexpr (kCopiesOperand) {
    wait_for(tiles.copied_full + ring.stage, ring.phase);
    const CopiedTile copied{tiles.copied + ring.stage * (ForwardTiles::kCopiedBytes / 2)};
    const bool raised = modify_tile(p, scores, rows, factors, partial, b, h, first_query, first_key, copied);
    leave(tiles.copied_empty + ring.stage);
    return raised;
  } else {
    return modify_tile(p, scores, rows, factors, partial, b, h, first_query, first_key);
  }
}

// Main loop of a consumer warpgroup over all tiles of keys from the walk's on. Its queries lie in tile `own`, and
// `first_query` is the first of the warp's 16. The next tile is found while WGMMAs run. Warpgroups take turns to issue,
// so that one's softmax overlaps the other's WGMMAs (ping-pong).
SCOREMOD_FUNCTION void consume_keys(const Arguments& p, const ForwardTiles& tiles, Half* own, SoftmaxRows& rows,
                                    TileWalk<false>& walk, Ring<kStages>& ring, int b, int h, int first_query) {
  const AttentionArguments& call = p.call;
  const unsigned q = moved_by(tile_view(own, kQueries), group_number() * 64 * 128);
  const unsigned k = tile_view(tiles.k, kKeys), v = tile_view(tiles.v, kKeys);
  Sums<1, kKeys> scores;
  unsigned weights[kKeys / 16][4];
  float factors[1][2];
  // The prologue computes S = Q K^T (WGMMA) and the softmax of the first tile.
  wait_for(tiles.k_full + ring.stage, ring.phase);
  await_turn();
  begin_products();
  ask_product_of_rows<kDimQk, kQueries, kKeys>(scores, q, moved_by(k, ring.stage * ForwardTiles::kKBytes));
  end_products();
  pass_turn();
  int first_key = walk.tile * kKeys;
  bool partial = walk.partial, more = walk.next(call, b, h);
  wait_for_products<0>();
  pin(scores.at[0]);
  leave(tiles.k_empty + ring.stage);
  modify_keys(p, tiles, ring, scores, rows, factors, partial, b, h, first_query, first_key);
  weigh(p, scores, rows, b, h, first_query, first_key);
  round_to_halves<kKeys>(weights, scores);
  while (more) {
    const Ring<kStages> last = ring;
    // S = Q K^T of this tile is issued, then O += P V of the last one, whose P is in registers.
    ring.advance();
    wait_for(tiles.k_full + ring.stage, ring.phase);
    await_turn();
    pin(weights);
    pin(rows.output.at[0]);
    begin_products();
    ask_product_of_rows<kDimQk, kQueries, kKeys>(scores, q, moved_by(k, ring.stage * ForwardTiles::kKBytes));
    end_products();
    wait_for(tiles.v_full + last.stage, last.phase);
    begin_products();
    ask_product<kDimV, kKeys>(rows.output, weights, moved_by(v, last.stage * ForwardTiles::kVBytes));
    end_products();
    pass_turn();
    first_key = walk.tile * kKeys;
    partial = walk.partial;
    more = walk.next(call, b, h);
    // S is complete and k's stage is free, while O += P V runs beside this tile's score_mod, mask and row max.
    wait_for_products<1>();
    pin(scores.at[0]);
    leave(tiles.k_empty + ring.stage);
    const bool raised = modify_keys(p, tiles, ring, scores, rows, factors, partial, b, h, first_query, first_key);
    // O += P V is waited for before the exponentials. These, sums and roundings overlap if no branch is between them,
    // and the registers that weights are rounded to are free by now.
    wait_for_products<0>();
    pin(rows.output.at[0]);
    leave(tiles.v_empty + last.stage);
    if (raised) scale_output(rows, factors);
    weigh(p, scores, rows, b, h, first_query, first_key);
    round_to_halves<kKeys>(weights, scores);
  }
  // The epilogue adds P V of the last tile.
  wait_for(tiles.v_full + ring.stage, ring.phase);
  pin(weights);
  pin(rows.output.at[0]);
  begin_products();
  ask_product<kDimV, kKeys>(rows.output, weights, moved_by(v, ring.stage * ForwardTiles::kVBytes));
  end_products();
  wait_for_products<0>();
  pin(rows.output.at[0]);
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
