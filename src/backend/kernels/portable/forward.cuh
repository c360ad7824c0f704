// attention_forward: one CTA for kQueries queries of one batch and head. Each warp has 16 kRowTiles of them, and walks
// with the others over the tiles of keys with an online softmax.
#pragma once

#include "backend/kernels/shared/memory.cuh"
#include "backend/kernels/shared/products.cuh"
#include "backend/kernels/shared/softmax.cuh"

SCOREMOD_KERNEL(kThreads, kBlocks) attention_forward(SCOREMOD_ARGUMENT p) {
  SCOREMOD_SHARED(shared);
  constexpr PortableForwardStorage kAt{kDimQk, kDimV, kQueries, kKeys, kElementBytes};
  TileElement* const q_tile = (TileElement*)(shared + kAt.q);
  TileElement* const k_tile = (TileElement*)(shared + kAt.k);
  TileElement* const v_tile = (TileElement*)(shared + kAt.v);
  const AttentionArguments& call = p.call;
  const QueryPlace place = query_place(call, blockIdx.x);
  const int b = place.b, h = place.h, query_tile = place.query_tile;
  const int warp_row = threadIdx.x / 32 * kWarpRows, first_query = query_tile * kQueries + warp_row;
  const int queries = queries_of(call, b), keys = keys_of(call, b);
  if (kRaggedQueries && query_tile * kQueries >= queries) return;
  const Rows ks = rows_of(call.k, b, h / call.group), vs = rows_of(call.v, b, h / call.group);

  SoftmaxRows rows;
  rows.clear();
  TileWalk<false> walk;
  walk.begin(call, b, h, query_tile);
  bool more = walk.next(call, b, h);
  if (more) {
    load_tile<kQueries, kDimQk>(q_tile, rows_of(call.q, b, h), query_tile * kQueries, queries);
    load_tile<kKeys, kDimQk>(k_tile, ks, walk.tile * kKeys, keys);
  }
  while (more) {
    const int first_key = walk.tile * kKeys;
    const bool partial = walk.partial;
    wait_for_copies();
    block_barrier();  // k is there, and nobody reads the last v any more
    load_tile<kKeys, kDimV>(v_tile, vs, first_key, keys);
    Sums<kRowTiles, kKeys> scores;
    scores.clear();
    add_product_of_rows<kDimQk>(scores, q_tile + warp_row * row_length(kDimQk), k_tile);
    more = walk.next(call, b, h);
    wait_for_copies();
    block_barrier();  // v is there, and nobody reads k any more
    if (more) load_tile<kKeys, kDimQk>(k_tile, ks, walk.tile * kKeys, keys);
    online_softmax_step(p, scores, rows, partial, b, h, first_query, first_key);
    add_product<kDimV>(rows.output, scores, v_tile);
  }
  float factors[kRowTiles][2];
  const bool not_finite = close_softmax(p, rows, factors, b, h, first_query);
  store_rows<kDimV>(rows.output, factors, rows_of<Output>(call.o, b, h), first_query, queries);
  if (!any_of_block(not_finite)) return;
  for (int i = 0; i < kQueries && query_tile * kQueries + i < queries; ++i)
    forward_row(p, (float*)shared, b, h, query_tile * kQueries + i);
}
