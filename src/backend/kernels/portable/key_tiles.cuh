// Tiles of dk and dv of the portable backward: one CTA for kWarps * 16 keys of one batch and KV head. It walks over the
// query heads of its group and their queries in ascending order. Its MMAs are transposed, keys along rows, so that
// weights and gradients are the left operands of those with d_o and q. If both accumulators do not fit into the
// registers, two kernels compute one each.
#pragma once

#include "backend/kernels/portable/storage.cuh"
#include "backend/kernels/shared/key_gradients.cuh"
#include "backend/kernels/shared/products.cuh"

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
