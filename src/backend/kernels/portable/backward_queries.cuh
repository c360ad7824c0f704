// attention_backward_queries computes dq: one CTA for kQueries queries of one batch and head, which walks over the
// tiles of keys in ascending order.
#pragma once

#include "backend/kernels/portable/storage.cuh"
#include "backend/kernels/shared/products.cuh"
#include "backend/kernels/shared/query_gradients.cuh"

// Replaces the rows' sums of o d_o, here and in memory. The new delta is the sum of each row's weights times their
// gradients, in float32 from end to end.
SCOREMOD_FUNCTION void recompute_deltas(const Arguments& p, TileElement* q_tile, TileElement* d_o_tile,
                                        TileElement* k_tile, TileElement* v_tile, float (&terms)[kRowTiles][2][2],
                                        int b, int h, int query_tile) {
  const AttentionArguments& call = p.call;
  const int lane = threadIdx.x % 32;
  const int warp_row = threadIdx.x / 32 * kWarpRows, first_query = query_tile * kQueries + warp_row;
  const int queries = queries_of(call, b), keys = keys_of(call, b);
  float deltas[kRowTiles][2], weights[kRowTiles][2];
  for (int m = 0; m < kRowTiles; ++m) deltas[m][0] = deltas[m][1] = weights[m][0] = weights[m][1] = 0.0f;
  const float sink = kSink ? sink_of(p, h) : -infinity();
  load_tile<kQueries, kDimQk>(q_tile, rows_of(call.q, b, h), query_tile * kQueries, queries);
  load_tile<kQueries, kDimV>(d_o_tile, rows_of<Output>(call.d_o, b, h), query_tile * kQueries, queries);
  KeySteps steps;
  steps.begin(call, b, h, query_tile);
  while (steps.next(call, b, h)) {
    const int first_key = steps.first_key();
    load_tile<kKeyStep, kDimQk>(k_tile, rows_of(call.k, b, h / call.group), first_key, keys);
    load_tile<kKeyStep, kDimV>(v_tile, rows_of(call.v, b, h / call.group), first_key, keys);
    wait_for_copies();
    block_barrier();
    Sums<kRowTiles, kKeyStep> scores, products;
    scores.clear();
    products.clear();
    add_product_of_rows<kDimQk>(scores, q_tile + warp_row * row_length(kDimQk), k_tile);
    add_product_of_rows<kDimV>(products, d_o_tile + warp_row * row_length(kDimV), v_tile);
    block_barrier();  // nobody reads k and v any more
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      const RowsStay<kKeyStep> stay(call, b, h, first_query + m * 16, first_key);
#pragma unroll
      for (int n = 0; n < kKeyStep / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float product = products.at[m][n][e];
          const Differentiated element = differentiate<true>(
              p, scores.at[m][n][e], product, stay.at(n, e), terms[m][e / 2][0], 0.0f, b, h,
              first_query + m * 16 + e / 2 * 8 + lane / 4, first_key + n * 8 + lane % 4 * 2 + e % 2);
          if (!element.kept) continue;
          deltas[m][e / 2] = multiply_add(element.weight, dropped(call, product, stay.at(n, e)), deltas[m][e / 2]);
          weights[m][e / 2] += element.weight;
        }
    }
  }
  wait_for_copies();
  block_barrier();  // the tiles may be loaded again
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = deltas[m][half], weight = weights[m][half];
      sum += exchange(sum, 1);
      sum += exchange(sum, 2);
      weight += exchange(weight, 1);
      weight += exchange(weight, 2);
      // The LSE's rounding is a factor of all weights of a row, the sink's among them: it is no part of their mean.
      if (kSink) weight += weight_of_sink(sink, terms[m][half][0]);
      if (weight != 0.0f) sum /= weight;
      terms[m][half][1] = sum;
      const int row = first_query + m * 16 + half * 8 + lane / 4;
      if (lane % 4 == 0 && row < queries) call.rows[row_place(call, b, h, row) + 1] = sum;
    }
}

SCOREMOD_KERNEL(kThreads, kBlocks) attention_backward_queries(SCOREMOD_ARGUMENT p) {
  SCOREMOD_SHARED(shared);
  constexpr PortableQueriesStorage kAt{kDimQk, kDimV, kQueries, kKeyStep, kElementBytes};
  TileElement* const q_tile = (TileElement*)(shared + kAt.q);
  TileElement* const d_o_tile = (TileElement*)(shared + kAt.d_o);
  TileElement* const v_tile = (TileElement*)(shared + kAt.v);
  TileElement* k_tile = (TileElement*)(shared + kAt.k);
  TileElement* other_k_tile = (TileElement*)(shared + kAt.other_k);
  const AttentionArguments& call = p.call;
  const QueryPlace place = query_place(call, blockIdx.x);
  const int b = place.b, h = place.h, query_tile = place.query_tile;
  const int warp_row = threadIdx.x / 32 * kWarpRows, first_query = query_tile * kQueries + warp_row;
  const int queries = queries_of(call, b), keys = keys_of(call, b);
  if (kRaggedQueries && query_tile * kQueries >= queries) return write_no_gains(p, b, h, query_tile);
  const Rows ks = rows_of(call.k, b, h / call.group), vs = rows_of(call.v, b, h / call.group);

  Sums<kRowTiles, padded(kDimQk)> dq;
  dq.clear();
  float terms[kRowTiles][2][2], factors[kRowTiles][2];
  read_row_terms(terms, call, b, h, first_query);
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) factors[m][0] = factors[m][1] = sum_factor(call);
  if (kRecomputedDelta) recompute_deltas(p, q_tile, d_o_tile, k_tile, v_tile, terms, b, h, query_tile);
  RowGains gains;
  gains.clear();
  clear_empty_tiles(p, b, h, query_tile);
  KeySteps steps;
  steps.begin(call, b, h, query_tile);
  bool more = steps.next(call, b, h);
  if (more) {
    load_tile<kQueries, kDimQk>(q_tile, rows_of(call.q, b, h), query_tile * kQueries, queries);
    load_tile<kQueries, kDimV>(d_o_tile, rows_of<Output>(call.d_o, b, h), query_tile * kQueries, queries);
    load_tile<kKeyStep, kDimQk>(k_tile, ks, steps.first_key(), keys);
    load_tile<kKeyStep, kDimV>(v_tile, vs, steps.first_key(), keys);
  }
  while (more) {
    const int first_key = steps.first_key();
    const bool partial = steps.walk.partial;
    wait_for_copies();
    block_barrier();  // k and v are there, and nobody reads the last k any more
    more = steps.next(call, b, h);
    if (more) load_tile<kKeyStep, kDimQk>(other_k_tile, ks, steps.first_key(), keys);
    Sums<kRowTiles, kKeyStep> scores, products;
    scores.clear();
    products.clear();
    add_product_of_rows<kDimQk>(scores, q_tile + warp_row * row_length(kDimQk), k_tile);
    add_product_of_rows<kDimV>(products, d_o_tile + warp_row * row_length(kDimV), v_tile);
    block_barrier();  // nobody reads v any more
    if (more) load_tile<kKeyStep, kDimV>(v_tile, vs, steps.first_key(), keys);
    if (partial)
      differentiate_tile<true>(p, scores, products, terms, gains, b, h, first_query, first_key);
    else
      differentiate_tile<false>(p, scores, products, terms, gains, b, h, first_query, first_key);
    add_product<kDimQk>(dq, scores, k_tile);
    TileElement* const read = k_tile;
    k_tile = other_k_tile;
    other_k_tile = read;
  }
  store_rows<kDimQk>(dq, factors, rows_of(call.dq, b, h), first_query, queries);
  if (kRowTargets > 0) {
    block_barrier();  // shared memory is free
    write_row_gains(p, gains, terms, b, h, query_tile, (float*)shared);
    block_barrier();
  }
  if (!any_of_block(any_not_finite(dq, first_query, queries))) return;
  for (int i = 0; i < kQueries && query_tile * kQueries + i < queries; ++i)
    backward_query_row(p, (float*)shared, b, h, query_tile * kQueries + i);
}
