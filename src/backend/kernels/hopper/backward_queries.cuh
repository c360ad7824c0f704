// hopper_backward_queries: attention_backward_queries with a producer warpgroup, which loads keys and values ahead by
// TMA, and consumer warpgroups of 64 queries each. While one turns the scores of a step into gradients, its WGMMA of
// the last step's gradients and k runs. The other warpgroups' WGMMAs run too.
#pragma once

#include "backend/kernels/hopper/tiles.cuh"
#include "backend/kernels/shared/query_gradients.cuh"

constexpr HopperQueriesStorage kQueriesStorage{kDimQk, kDimV, kQueries, kKeyStep, kKeyStages, kDifferenceTargets > 0};

struct QueryTiles {
  Half *q, *d_o, *k, *v;
  float* diagonals;  // DiagonalGains'
  Barrier *own_full, *k_full, *k_empty, *v_full, *v_empty;

  static constexpr int kKBytes = kQueriesStorage.k_tile.bytes, kVBytes = kQueriesStorage.v_tile.bytes;

  SCOREMOD_MEMBER explicit QueryTiles(unsigned char* shared) {
    constexpr HopperQueriesStorage kAt = kQueriesStorage;
    q = (Half*)(shared + kAt.q);
    d_o = (Half*)(shared + kAt.d_o);
    k = (Half*)(shared + kAt.k);
    v = (Half*)(shared + kAt.v);
    own_full = (Barrier*)(shared + kAt.own_full);
    k_full = (Barrier*)(shared + kAt.k_full);
    k_empty = (Barrier*)(shared + kAt.k_empty);
    v_full = (Barrier*)(shared + kAt.v_full);
    v_empty = (Barrier*)(shared + kAt.v_empty);
    diagonals = (float*)(shared + kAt.diagonals);
  }
  SCOREMOD_MEMBER void begin() const {
    mbarrier_init(own_full, 2);
    for (int i = 0; i < kKeyStages; ++i) {
      mbarrier_init(k_full + i, 1);
      mbarrier_init(v_full + i, 1);
      mbarrier_init(k_empty + i, kWarps);
      mbarrier_init(v_empty + i, kWarps);
    }
    fence_mbarrier_init();
  }
};

SCOREMOD_FUNCTION void produce_keys(const MappedArguments& all, const QueryTiles& tiles, int b, int h, int query_tile) {
  const AttentionArguments& call = all.rest.call;
  // One thread issues all TMA loads.
  if (call.q.aligned && call.k.aligned && call.v.aligned && call.d_o.aligned && threadIdx.x >= kThreads + 32) return;
  KeySteps steps;
  steps.begin(call, b, h, query_tile);
  if (!steps.next(call, b, h)) return;
  const int queries = queries_of(call, b), keys = keys_of(call, b);
  fill_tile<kQueries, kDimQk>(tiles.q, call.q, all.q, tiles.own_full, b, h, query_tile * kQueries, queries);
  fill_tile<kQueries, kDimV>(tiles.d_o, call.d_o, all.d_o, tiles.own_full, b, h, query_tile * kQueries, queries);
  Ring<kKeyStages> ring;
  do {
    const int first = steps.first_key(), head = h / call.group;
    mbarrier_wait(tiles.k_empty + ring.stage, ring.phase ^ 1);
    fill_tile<kKeyStep, kDimQk>(tiles.k + ring.stage * (QueryTiles::kKBytes / 2), call.k, all.k,
                                tiles.k_full + ring.stage, b, head, first, keys);
    mbarrier_wait(tiles.v_empty + ring.stage, ring.phase ^ 1);
    fill_tile<kKeyStep, kDimV>(tiles.v + ring.stage * (QueryTiles::kVBytes / 2), call.v, all.v,
                               tiles.v_full + ring.stage, b, head, first, keys);
    ring.advance();
  } while (steps.next(call, b, h));
}

SCOREMOD_FUNCTION void consume_keys(const Arguments& p, const QueryTiles& tiles, Sums<1, padded(kDimQk)>& dq,
                                    RowGains& gains, int b, int h, int query_tile) {
  const AttentionArguments& call = p.call;
  const int first_query = query_tile * kQueries + threadIdx.x / 32 * 16;
  KeySteps steps;
  steps.begin(call, b, h, query_tile);
  if (!steps.next(call, b, h)) return;
  float terms[1][2][2];
  read_row_terms(terms, call, b, h, first_query);
  const int group_bytes = group_number() * 64 * 128;
  const unsigned q = moved_by(tile_view(tiles.q, kQueries), group_bytes),
                 d_o = moved_by(tile_view(tiles.d_o, kQueries), group_bytes);
  const unsigned k = tile_view(tiles.k, kKeyStep), v = tile_view(tiles.v, kKeyStep);
  Ring<kKeyStages> ring;
  Sums<1, kKeyStep> scores, products;
  unsigned gradients[kKeyStep / 16][4];
  // Issues S = Q K^T and dP = dO V^T of a step.
  const auto issue_products = [&] {
    mbarrier_wait(tiles.k_full + ring.stage, ring.phase);
    wgmma_fence();
    issue_wgmma_abt<kDimQk, kQueries, kKeyStep>(scores, q, moved_by(k, ring.stage * QueryTiles::kKBytes));
    mbarrier_wait(tiles.v_full + ring.stage, ring.phase);
    issue_wgmma_abt<kDimV, kQueries, kKeyStep>(products, d_o, moved_by(v, ring.stage * QueryTiles::kVBytes));
    wgmma_commit();
  };
  const auto differentiate_step = [&] {
    fence_operand(scores.at[0]);
    fence_operand(products.at[0]);
    consumer_release(tiles.v_empty + ring.stage);
    if (kDifferenceTargets > 0) warpgroup_sync();  // nobody reads the last step's diagonals any more
    // Rows beyond the last have no diagonals.
    const bool ends = kDifferenceTargets > 0 && (query_tile + 1) * kQueries > call.seq_q;
    if (steps.walk.partial || ends)
      differentiate_tile<true>(p, scores, products, terms, gains, b, h, first_query, steps.first_key());
    else
      differentiate_tile<false>(p, scores, products, terms, gains, b, h, first_query, steps.first_key());
    if (kDifferenceTargets > 0) {
      warpgroup_sync();
      gains.diagonals.add_step(own_diagonal_sums(p, b, h, query_tile), steps.first_key());
    }
  };
  scheduler_begin();
  mbarrier_wait(tiles.own_full, 0);
  issue_products();
  wgmma_wait<0>();
  differentiate_step();
  round_to_16bit<kKeyStep>(gradients, scores);
  // S and dP of this step are issued, then dQ += dS K of the last one, which runs beside this step's gradients.
  while (steps.next(call, b, h)) {
    const int last = ring.stage;
    ring.advance();
    scheduler_wait();
    fence_operand(gradients);
    fence_operand(dq.at[0]);
    issue_products();
    issue_wgmma_ab<kDimQk, kKeyStep>(dq, gradients, moved_by(k, last * QueryTiles::kKBytes));
    wgmma_commit();
    scheduler_pass();
    wgmma_wait<1>();
    differentiate_step();
    wgmma_wait<0>();
    fence_operand(dq.at[0]);
    consumer_release(tiles.k_empty + last);
    round_to_16bit<kKeyStep>(gradients, scores);
  }
  fence_operand(gradients);
  fence_operand(dq.at[0]);
  wgmma_fence();
  issue_wgmma_ab<kDimQk, kKeyStep>(dq, gradients, moved_by(k, ring.stage * QueryTiles::kKBytes));
  wgmma_commit();
  wgmma_wait<0>();
  fence_operand(dq.at[0]);
}

SCOREMOD_KERNEL(kThreads + kGroup, 1) hopper_backward_queries(SCOREMOD_MAPPED_ARGUMENT all) {
  SCOREMOD_SHARED(unaligned);
  const QueryTiles tiles(aligned_tiles(unaligned));
  const AttentionArguments& call = all.rest.call;
  const QueryPlace place = query_place(call, blockIdx.x);
  const int b = place.b, h = place.h, query_tile = place.query_tile;
  if (kRaggedQueries && query_tile * kQueries >= queries_of(call, b)) return write_no_gains(all.rest, b, h, query_tile);
  if (threadIdx.x == 0) tiles.begin();
  cta_sync();
  if (threadIdx.x >= kThreads) {
    setmaxnreg_dec<kProducerRegisters>();
    produce_keys(all, tiles, b, h, query_tile);
  } else {
    setmaxnreg_inc<kConsumerRegisters>();
    Sums<1, padded(kDimQk)> dq;
    dq.clear();
    RowGains gains;
    gains.clear();
    gains.diagonals.begin(tiles.diagonals);
    clear_empty_tiles(all.rest, b, h, query_tile);
    consume_keys(all.rest, tiles, dq, gains, b, h, query_tile);
    if (kDifferenceTargets > 0) gains.diagonals.finish(own_diagonal_sums(all.rest, b, h, query_tile), call);
    const int first_query = query_tile * kQueries + threadIdx.x / 32 * 16;
    const int queries = queries_of(call, b);
    const float factor = sum_factor(call), factors[1][2] = {{factor, factor}};
    store_through_tile<kDimQk, kDimQk>(dq, factors, rows_of(call.dq, b, h), tiles.q, first_query, queries);
    if (kRowTargets > 0) {
      float terms[1][2][2];
      read_row_terms(terms, call, b, h, first_query);
      write_row_gains(all.rest, gains, terms, b, h, query_tile, (float*)tiles.d_o);
    }
    if (any_of_block(any_not_finite(dq, first_query, queries))) {
      for (int i = 0; i < kQueries && query_tile * kQueries + i < queries; ++i)
        backward_query_row(all.rest, (float*)tiles.q, b, h, query_tile * kQueries + i);
    }
  }
}
