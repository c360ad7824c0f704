// The portable backward: attention_backward_queries writes dq, and attention_backward_keys dk and dv. If the
// accumulators of both do not fit into the registers, attention_backward_values writes dv.
#pragma once

#include "backend/kernels/shared/key_gradients.cuh"
#include "backend/kernels/shared/memory.cuh"
#include "backend/kernels/shared/products.cuh"
#include "backend/kernels/shared/query_gradients.cuh"

// attention_backward_queries computes dq: one CTA for kQueries queries of one batch and head, which walks over the
// tiles of keys in ascending order.

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

/*{kernel attention_backward_queries}*/
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
/*{}*/

// Tiles of dk and dv of the portable backward: one CTA for kWarps * 16 keys of one batch and KV head. It walks over the
// query heads of its group and their queries in ascending order. Its MMAs are transposed, keys along rows, so that
// weights and gradients are the left operands of those with d_o and q. If both accumulators do not fit into the
// registers, two kernels compute one each.
template <bool kDk, bool kDv>
SCOREMOD_FUNCTION void write_keys(const Arguments& p) {
  SCOREMOD_SHARED(shared);
  constexpr PortableKeysStorage kAt{kDimQk, kDimV, kKeys, kStep, kElementBytes};
  constexpr int kStepElements = kAt.stage_bytes / kElementBytes;
  TileElement* const k_tile = (TileElement*)(shared + kAt.k);
  TileElement* const v_tile = (TileElement*)(shared + kAt.v);
  TileElement* const step_tiles = (TileElement*)(shared + kAt.q);  // q, then d_o
  float* const step_terms = (float*)(shared + kAt.terms);
  const AttentionArguments& call = p.call;
  const KeyPlace place = key_place(call, blockIdx.x);
  const int b = place.b, head_kv = place.head_kv, key_tile = place.key_tile;
  const int warp_row = threadIdx.x / 32 * 16, first_key = key_tile * kKeys + warp_row;
  const int queries = queries_of(call, b), keys = keys_of(call, b);
  if (kRaggedKeys && key_tile * kKeys >= keys) {
    KeyGains none;
    none.begin_head(p, b, head_kv * call.group, first_key);
    if (kDk) move_gains_to(none, p, b, (head_kv + 1) * call.group, first_key);
    return;
  }
  Sums<1, padded(kDimQk)> dk;
  Sums<1, padded(kDimV)> dv;
  dk.clear();
  dv.clear();
  KeyGains gains;
  gains.begin_head(p, b, head_kv * call.group, first_key);
  QuerySteps steps;
  steps.begin(call, b, head_kv, key_tile);
  const auto load_step = [&](int buffer) {
    TileElement* const q_tile = step_tiles + buffer * kStepElements;
    load_tile<kStep, kDimQk>(q_tile, rows_of(call.q, b, steps.h), steps.first_query(), queries);
    load_tile<kStep, kDimV>(q_tile + kStep * row_length(kDimQk), rows_of<Output>(call.d_o, b, steps.h),
                            steps.first_query(), queries);
    for (int i = threadIdx.x; i < kStep; i += kThreads) {
      const int q = steps.first_query() + i;
      const bool there = q < call.seq_q;
      copy_ahead<8>(step_terms + (buffer * kStep + i) * 2, row_terms(call, b, steps.h, there ? q : 0), there ? 8 : 0);
    }
  };
  bool more = steps.next(call, b);
  if (more) {
    load_tile<kKeys, kDimQk>(k_tile, rows_of(call.k, b, head_kv), key_tile * kKeys, keys);
    load_tile<kKeys, kDimV>(v_tile, rows_of(call.v, b, head_kv), key_tile * kKeys, keys);
    load_step(0);
  }
  for (int buffer = 0; more; buffer ^= 1) {
    const int h = steps.h, first_query = steps.first_query();
    const bool partial = steps.walk.partial || first_query + kStep > call.seq_q;
    wait_for_copies();
    block_barrier();  // the step is there, and nobody reads the last one any more
    more = steps.next(call, b);
    if (more) load_step(buffer ^ 1);
#pragma unroll 1
    for (int part = 0; part < kStep; part += kPart) {
      const TileElement* const q_tile = step_tiles + buffer * kStepElements + part * row_length(kDimQk);
      const TileElement* const d_o_tile =
          step_tiles + buffer * kStepElements + kStep * row_length(kDimQk) + part * row_length(kDimV);
      const float* const terms = step_terms + (buffer * kStep + part) * 2;
      Sums<1, kPart> scores, products;
      scores.clear();
      products.clear();
      add_product_of_rows<kDimQk>(scores, k_tile + warp_row * row_length(kDimQk), q_tile);
      if (kDk) add_product_of_rows<kDimV>(products, v_tile + warp_row * row_length(kDimV), d_o_tile);
      if (partial)
        differentiate_part<true>(p, scores, products, terms, gains, b, h, first_query + part, first_key);
      else
        differentiate_part<false>(p, scores, products, terms, gains, b, h, first_query + part, first_key);
      if (kDv) add_product<kDimV>(dv, scores, d_o_tile);
      if (kDk) add_product<kDimQk>(dk, products, q_tile);
    }
    if (kDk) move_gains_to(gains, p, b, steps.h, first_key);
  }
  if (kDk) move_gains_to(gains, p, b, steps.end_h, first_key);
  const float of_dk = sum_factor(call), dk_factors[1][2] = {{of_dk, of_dk}}, ones[1][2] = {{1.0f, 1.0f}};
  if (kDk) store_rows<kDimQk>(dk, dk_factors, rows_of(call.dk, b, head_kv), first_key, keys);
  if (kDv) store_rows<kDimV>(dv, ones, rows_of(call.dv, b, head_kv), first_key, keys);
  mend_keys<kDk, kDv>(p, dk, dv, (float*)shared, b, head_kv, key_tile);
}

/*{kernel attention_backward_keys}*/
SCOREMOD_KERNEL(kThreads, kBlocks) attention_backward_keys(SCOREMOD_ARGUMENT p) { write_keys<true, !kSeparateDv>(p); }
/*{}*/

/*{kernel attention_backward_values}*/
SCOREMOD_KERNEL(kThreads, kBlocks) attention_backward_values(SCOREMOD_ARGUMENT p) {
  if (kSeparateDv) write_keys<false, kSeparateDv>(p);
}
/*{}*/
