// Operand gradients at one element: the part of a program that operand_gradients/tile_sums.cuh calls.
#pragma once

#include "backend/kernels/shared/key_gradients.cuh"
#include "backend/kernels/shared/products.cuh"
#include "backend/kernels/shared/query_gradients.cuh"

// One text of a large program for all tiles: with its mask, which keeps all of a tile that is full.
constexpr bool kAlwaysMasked = /*{always_masked}*/ false /*{}*/;
// No array has no elements.
constexpr int kMaxElementTargets = kTargets > kRowTargets ? kTargets - kRowTargets : 1;
constexpr int kMaxTableReads = kTableReads > 0 ? kTableReads : 1;

// At one element: its weight before dropout; and what the targets gain, which is proportional to the gradient of the
// element's value. Those of rows gain of the weight's gradient what is left when the row's delta is known.
struct Gains {
  bool kept;
  float weight;
  float of_weight[kMaxRowTargets], of_product[kMaxRowTargets];
  float of_element[kMaxElementTargets];
  int entries[kMaxTableReads];  // that tables are read at, of all tables together
};

/*{gains_of}*/
// From the score, the gradient of the weight (the product of d_o and v, after dropout), and the row's terms.
template <bool kMasked>
/*{linkage}*/ SCOREMOD_FUNCTION /*{}*/ Gains gains_of(const Arguments& p, float score, float product, float exponent,
                                                      float delta, int b, int h, int any_q, int any_kv) {
  const int q = program_query(p.call, any_q), kv = program_key(p.call, any_kv);
  const int offset_b = index_offset(p.call.offset_b), offset_h = index_offset(p.call.offset_h),
            offset_q = index_offset(p.call.offset_q), offset_kv = index_offset(p.call.offset_kv);
  Gains gains{};
  /*{forward_statements}*/ const float value = score; /*{}*/
  gains.kept = /*{value}*/ value /*{}*/ != -infinity() && exponent != infinity() && any_q < p.call.seq_q &&
               any_kv < p.call.seq_kv;
  if (kMasked) gains.kept = gains.kept && /*{keep}*/ kv <= q /*{}*/;
  if (!gains.kept) return gains;
  const float weight = weight_of(/*{value}*/ value /*{}*/, 1.0f, exponent);
  const auto contributions = [&](float upstream) {
    /*{statements}*/ const float n1 = upstream * score; /*{}*/
    return Contributions{{/*{contributions}*/ n1, n1, n1, n1, n1 /*{}*/}};
  };
  gains.weight = weight;
  /*{entries}*/ gains.entries[0] = kv; /*{}*/
  const Contributions of_weight = contributions(weight);
#pragma unroll
  for (int t = 0; t < kRowTargets; ++t) {
    gains.of_weight[t] = of_weight.of[t];
    gains.of_product[t] = of_weight.of[t] * product;
  }
#pragma unroll
  for (int t = kRowTargets; t < kTargets; ++t) gains.of_element[t - kRowTargets] = of_weight.of[t] * (product - delta);
  return gains;
}
/*{}*/

// The gradient of a bias that varies along queries and keys and is broadcast over batch or heads. A CTA has a tile of
// its entries, and each thread keeps some in registers. It goes through all that share them in ascending order. There
// is no memory for sums, and nobody else writes them.

// A block's entries: kQueries by kKeyStep. The batch and the head are the first ones that share them.
struct SharedPlace {
  int b, h, query_tile, first_key;
};
SCOREMOD_FUNCTION SharedPlace shared_place(const AttentionArguments& call, bool by_head) {
  const int steps = (call.seq_kv + kKeyStep - 1) / kKeyStep, heads = by_head ? call.heads_q : 1;
  const int tile = blockIdx.x / steps, head = tile / call.query_tiles;
  return {head / heads, head % heads, tile % call.query_tiles, (int)(blockIdx.x % steps) * kKeyStep};
}

template <bool kMasked, int kTarget>
SCOREMOD_FUNCTION void add_shared_gains(const Arguments& p, Sums<kRowTiles, kKeyStep>& sums,
                                        const Sums<kRowTiles, kKeyStep>& scores,
                                        const Sums<kRowTiles, kKeyStep>& products, int b, int h, int first_query,
                                        int first_key) {
  const AttentionArguments& call = p.call;
  const int lane = threadIdx.x % 32;
  float terms[kRowTiles][2][2];
  read_row_terms(terms, call, b, h, first_query);
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
    const RowsStay<kKeyStep> stay(call, b, h, first_query + m * 16, first_key);
#pragma unroll
    for (int n = 0; n < kKeyStep / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int half = e / 2, q = first_query + m * 16 + half * 8 + lane / 4;
        const int kv = first_key + n * 8 + lane % 4 * 2 + e % 2;
        const float product = dropped(call, products.at[m][n][e], stay.at(n, e));
        const Gains gains = gains_of<kMasked>(p, scores.at[m][n][e] * call.scale, product, terms[m][half][0],
                                              terms[m][half][1], b, h, q, kv);
        if (gains.kept) sums.at[m][n][e] += gains.of_element[kFirstSharedTarget - kRowTargets + kTarget];
      }
  }
}

template <int kTarget>
SCOREMOD_FUNCTION void sum_shared_elements(const Arguments& p, Sums<kRowTiles, kKeyStep>& sums, unsigned char* shared,
                                           const SharedPlace& place, int batches, int heads) {
  constexpr SharedElementsStorage kAt{kDimQk, kDimV, kQueries, kKeyStep, kElementBytes};
  TileElement* const q_tile = (TileElement*)(shared + kAt.q);
  TileElement* const d_o_tile = (TileElement*)(shared + kAt.d_o);
  TileElement* const k_tile = (TileElement*)(shared + kAt.k);
  TileElement* const v_tile = (TileElement*)(shared + kAt.v);
  const AttentionArguments& call = p.call;
  const int first_row = place.query_tile * kQueries, warp_row = threadIdx.x / 32 * 16 * kRowTiles;
  sums.clear();
#pragma unroll 1
  for (int i = 0; i < batches * heads; ++i) {
    const int b = place.b + i / heads, h = place.h + i % heads, queries = queries_of(call, b), keys = keys_of(call, b);
    const TileKind state = state_of(call, b, h, place.query_tile, place.first_key / kKeys);
    if (state == kEmptyTile || first_row >= queries || place.first_key >= keys) continue;
    block_barrier();  // nobody reads the last one's tiles any more
    load_tile<kQueries, kDimQk>(q_tile, rows_of(call.q, b, h), first_row, queries);
    load_tile<kQueries, kDimV>(d_o_tile, rows_of<Output>(call.d_o, b, h), first_row, queries);
    load_tile<kKeyStep, kDimQk>(k_tile, rows_of(call.k, b, h / call.group), place.first_key, keys);
    load_tile<kKeyStep, kDimV>(v_tile, rows_of(call.v, b, h / call.group), place.first_key, keys);
    wait_for_copies();
    block_barrier();
    Sums<kRowTiles, kKeyStep> scores, products;
    scores.clear();
    products.clear();
    add_product_of_rows<kDimQk>(scores, q_tile + warp_row * row_length(kDimQk), k_tile);
    add_product_of_rows<kDimV>(products, d_o_tile + warp_row * row_length(kDimV), v_tile);
    if (kAlwaysMasked || state == kPartialTile)
      add_shared_gains<true, kTarget>(p, sums, scores, products, b, h, first_row + warp_row, place.first_key);
    else
      add_shared_gains<false, kTarget>(p, sums, scores, products, b, h, first_row + warp_row, place.first_key);
  }
}

/*{shared_elements}*/
SCOREMOD_KERNEL(kThreads, kBlocks) /*{name}*/ attention_operand_shared_0 /*{}*/ (SCOREMOD_ARGUMENT p) {
  SCOREMOD_SHARED(shared);
  const AttentionArguments& call = p.call;
  const OperandArgument& operand = p.operands[/*{operand}*/ 0 /*{}*/];
  if (operand.gradient == nullptr) return;
  const bool by_batch = /*{by_batch}*/ true /*{}*/, by_head = /*{by_head}*/ true /*{}*/;
  const SharedPlace place = shared_place(call, by_head);
  Sums<kRowTiles, kKeyStep> sums;
  sum_shared_elements</*{number}*/ 0 /*{}*/>(p, sums, shared, place, by_batch ? 1 : call.batch,
                                             by_head ? 1 : call.heads_q);
  const int b = place.b, h = place.h, lane = threadIdx.x % 32;
  const int first_query = place.query_tile * kQueries + threadIdx.x / 32 * 16 * kRowTiles;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int n = 0; n < kKeyStep / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int q = first_query + m * 16 + e / 2 * 8 + lane / 4;
        const int kv = place.first_key + n * 8 + lane % 4 * 2 + e % 2;
        if (q >= call.seq_q || kv >= call.seq_kv) continue;
        /*{store}*/ store_f32 /*{}*/ (operand.gradient, /*{offset}*/ b + h + q + kv /*{}*/, sums.at[m][n][e]);
      }
}
/*{}*/
