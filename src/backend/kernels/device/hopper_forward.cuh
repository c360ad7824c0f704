// hopper_forward: attention_forward with one warpgroup that copies tiles of keys ahead and others that have 64 queries
// each. While a group turns the scores of a tile into weights, its product of the last tile's weights and v runs, and
// the other groups' products.
#pragma once

#include "backend/kernels/device/attention_softmax.cuh"
#include "backend/kernels/device/hopper_tiles.cuh"

struct ForwardTiles {
  Half *q, *k, *v;
  Barrier *q_full, *k_full, *k_empty, *v_full, *v_empty;

  static constexpr int kKBytes = tile_bytes(kKeys, kDimQk), kVBytes = tile_bytes(kKeys, kDimV);
  static constexpr int kBarriers = tile_bytes(kQueries, kDimQk) + kStages * (kKBytes + kVBytes);

  SCOREMOD_MEMBER explicit ForwardTiles(unsigned char* shared) {
    q = (Half*)shared;
    k = (Half*)(shared + tile_bytes(kQueries, kDimQk));
    v = k + kStages * kKBytes / 2;
    q_full = (Barrier*)(shared + kBarriers);
    k_full = q_full + 1;
    k_empty = k_full + kStages;
    v_full = k_empty + kStages;
    v_empty = v_full + kStages;
  }
  SCOREMOD_MEMBER void begin() const {
    begin_barrier(q_full, 1);
    for (int i = 0; i < kStages; ++i) {
      begin_barrier(k_full + i, 1);
      begin_barrier(v_full + i, 1);
      begin_barrier(k_empty + i, kWarps);
      begin_barrier(v_empty + i, kWarps);
    }
    publish_barriers();
  }
};

SCOREMOD_FUNCTION void produce_forward(const MappedArguments& all, const ForwardTiles& tiles, int b, int h,
                                       int query_tile) {
  const AttentionArguments& call = all.rest.call;
  // One thread asks for all copies of boxes.
  if (call.q.aligned && call.k.aligned && call.v.aligned && threadIdx.x >= kThreads + 32) return;
  TileWalk<false> walk;
  walk.begin(call, b, h, query_tile);
  if (!walk.next(call, b, h)) return;
  fill_tile<kQueries, kDimQk>(tiles.q, call.q, all.q, tiles.q_full, b, h, query_tile * kQueries, queries_of(call, b));
  const int keys = keys_of(call, b);
  Ring<kStages> ring;
  do {
    const int first = walk.tile * kKeys, head = h / call.group;
    wait_for(tiles.k_empty + ring.stage, ring.phase ^ 1);
    fill_tile<kKeys, kDimQk>(tiles.k + ring.stage * (ForwardTiles::kKBytes / 2), call.k, all.k,
                             tiles.k_full + ring.stage, b, head, first, keys);
    wait_for(tiles.v_empty + ring.stage, ring.phase ^ 1);
    fill_tile<kKeys, kDimV>(tiles.v + ring.stage * (ForwardTiles::kVBytes / 2), call.v, all.v,
                            tiles.v_full + ring.stage, b, head, first, keys);
    ring.advance();
  } while (walk.next(call, b, h));
}

// Turns the scores of a tile into weights, but for what was summed before.
SCOREMOD_FUNCTION bool soften_tile(const Arguments& p, Sums<1, kKeys>& scores, SoftmaxRows& rows,
                                   float (&factors)[1][2], const TileWalk<false>& walk, int b, int h, int first_query) {
  float top[1][2];
  if (walk.partial)
    modify<true>(p, scores, top, b, h, first_query, walk.tile * kKeys);
  else
    modify<false>(p, scores, top, b, h, first_query, walk.tile * kKeys);
  const bool raised = raise_references(p, top, rows, factors);
  weigh(p, scores, rows, b, h, first_query, walk.tile * kKeys);
  return raised;
}

SCOREMOD_FUNCTION void consume_forward(const Arguments& p, const ForwardTiles& tiles, SoftmaxRows& rows, int b, int h,
                                       int query_tile) {
  const AttentionArguments& call = p.call;
  const int first_query = query_tile * kQueries + threadIdx.x / 32 * 16;
  TileWalk<false> walk;
  walk.begin(call, b, h, query_tile);
  if (!walk.next(call, b, h)) return;
  const unsigned q = moved_by(tile_view(tiles.q, kQueries), group_number() * 64 * 128);
  const unsigned k = tile_view(tiles.k, kKeys), v = tile_view(tiles.v, kKeys);
  Ring<kStages> ring;
  Sums<1, kKeys> scores;
  unsigned weights[kKeys / 16][4];
  float factors[1][2];
  begin_turns();
  wait_for(tiles.q_full, 0);
  wait_for(tiles.k_full, 0);
  await_turn();
  begin_products();
  ask_product_of_rows<kDimQk, kQueries, kKeys>(scores, q, k);
  end_products();
  pass_turn();
  wait_for_products<0>();
  pin(scores.at[0]);
  leave(tiles.k_empty);
  soften_tile(p, scores, rows, factors, walk, b, h, first_query);
  round_to_halves<kKeys>(weights, scores);
  while (walk.next(call, b, h)) {
    const Ring<kStages> last = ring;
    ring.advance();
    wait_for(tiles.k_full + ring.stage, ring.phase);
    await_turn();
    pin(weights);
    pin(rows.output.at[0]);
    begin_products();
    ask_product_of_rows<kDimQk, kQueries, kKeys>(scores, q, moved_by(k, ring.stage * ForwardTiles::kKBytes));
    end_products();
    wait_for(tiles.v_full + last.stage, last.phase);
    ask_product<kDimV, kKeys>(rows.output, weights, moved_by(v, last.stage * ForwardTiles::kVBytes));
    end_products();
    pass_turn();
    wait_for_products<1>();
    pin(scores.at[0]);
    leave(tiles.k_empty + ring.stage);
    const bool raised = soften_tile(p, scores, rows, factors, walk, b, h, first_query);
    wait_for_products<0>();
    pin(rows.output.at[0]);
    leave(tiles.v_empty + last.stage);
    if (raised) scale_output(rows, factors);
    round_to_halves<kKeys>(weights, scores);
  }
  wait_for(tiles.v_full + ring.stage, ring.phase);
  pin(weights);
  pin(rows.output.at[0]);
  begin_products();
  ask_product<kDimV, kKeys>(rows.output, weights, moved_by(v, ring.stage * ForwardTiles::kVBytes));
  end_products();
  wait_for_products<0>();
  pin(rows.output.at[0]);
}

SCOREMOD_KERNEL(kThreads + kGroup, 1) hopper_forward(SCOREMOD_MAPPED_ARGUMENT all) {
  SCOREMOD_SHARED(unaligned);
  const ForwardTiles tiles(aligned_tiles(unaligned));
  const AttentionArguments& call = all.rest.call;
  // The last queries come first: under a causal mask they take longest.
  const int query_tile = call.query_tiles - 1 - blockIdx.x % call.query_tiles;
  const int head = blockIdx.x / call.query_tiles, b = head / call.heads_q, h = head % call.heads_q;
  if (kRaggedQueries && query_tile * kQueries >= queries_of(call, b)) return;
  if (threadIdx.x == 0) tiles.begin();
  everyone_meets();
  if (threadIdx.x >= kThreads) {
    give_registers<kProducerRegisters>();
    produce_forward(all, tiles, b, h, query_tile);
  } else {
    take_registers<kConsumerRegisters>();
    SoftmaxRows rows;
    rows.clear();
    consume_forward(all.rest, tiles, rows, b, h, query_tile);
    const int first_query = query_tile * kQueries + threadIdx.x / 32 * 16;
    const int queries = queries_of(call, b);
    float factors[1][2];
    const bool not_finite = close_softmax(all.rest, rows, factors, b, h, first_query);
    store_through_tile<kDimV, kDimQk>(rows.output, factors, rows_of<Output>(call.o, b, h), tiles.q, first_query,
                                      queries);
    if (any_of_block(not_finite)) {
      for (int i = 0; i < kQueries && query_tile * kQueries + i < queries; ++i)
        forward_row(all.rest, (float*)tiles.q, b, h, query_tile * kQueries + i);
    }
  }
}
