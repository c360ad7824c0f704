// The Hopper forward of FP8 numbers, whose products are WGMMAs of e4m3. Its weights are rounded to e4m3. Tensor cores
// keep fewer digits of a long FP8 sum than float32 has, so each tile's product with v begins anew and is added to o.
// A producer warpgroup loads tiles ahead by TMA, and two consumer warpgroups have 64 queries each.
#pragma once

#include "backend/kernels/float8/tiles.cuh"
#include "backend/kernels/shared/softmax.cuh"

constexpr Float8ForwardStorage kFloat8Storage{kDimQk, kDimV, kQueries, kKeys, kStages};

struct Float8Tiles {
  Float8 *q, *k, *v;
  Barrier *q_full, *k_full, *k_empty, *v_full, *v_empty;

  static constexpr int kKBytes = kFloat8Storage.k_tile.bytes, kVBytes = kFloat8Storage.v_tile.bytes;

  SCOREMOD_MEMBER explicit Float8Tiles(unsigned char* shared) {
    constexpr Float8ForwardStorage kAt = kFloat8Storage;
    q = (Float8*)(shared + kAt.q);
    k = (Float8*)(shared + kAt.k);
    v = (Float8*)(shared + kAt.v);
    q_full = (Barrier*)(shared + kAt.q_full);
    k_full = (Barrier*)(shared + kAt.k_full);
    k_empty = (Barrier*)(shared + kAt.k_empty);
    v_full = (Barrier*)(shared + kAt.v_full);
    v_empty = (Barrier*)(shared + kAt.v_empty);
  }
  SCOREMOD_MEMBER void begin() const {
    mbarrier_init(q_full, 1);
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(k_full + i, 1);
      mbarrier_init(v_full + i, 1);
      mbarrier_init(k_empty + i, kWarps);
      mbarrier_init(v_empty + i, kWarps);
    }
    fence_mbarrier_init();
  }
};

// Producer warpgroup: loads the tile of q, then a tile of k and one of v^T for each step of the walk. One thread loads
// aligned tensors.
SCOREMOD_FUNCTION void produce_float8(const MappedArguments& all, const Float8Tiles& tiles, const QueryPlace& item) {
  const AttentionArguments& call = all.rest.call;
  if (call.q.aligned && call.k.aligned && threadIdx.x >= kThreads + 32) return;
  const int b = item.b, h = item.h, head = h / call.group;
  TileWalk<false> walk;
  walk.begin(call, b, h, item.query_tile);
  if (!walk.next(call, b, h)) return;
  fill_float8_tile<kQueries, kDimQk>(tiles.q, call.q, all.q, tiles.q_full, b, h, item.query_tile * kQueries,
                                     call.seq_q);
  Ring<kStages> ring;
  do {
    const int first = walk.tile * kKeys;
    mbarrier_wait(tiles.k_empty + ring.stage, ring.phase ^ 1);
    fill_float8_tile<kKeys, kDimQk>(tiles.k + ring.stage * Float8Tiles::kKBytes, call.k, all.k,
                                    tiles.k_full + ring.stage, b, head, first, call.seq_kv);
    mbarrier_wait(tiles.v_empty + ring.stage, ring.phase ^ 1);
    if (threadIdx.x == kThreads)
      load_float8_tile<kDimV, kKeys>(tiles.v + ring.stage * Float8Tiles::kVBytes, all.copied, tiles.v_full + ring.stage,
                                     first, 0, head, b);
    ring.advance();
  } while (walk.next(call, b, h));
}

// The product of a tile's weights and v is made for one half of v's dims after the other. Registers have no room for
// all of it beside o, the weights and the next tile's scores.
constexpr int kHalfOfV = kDimV / 2;

// Issues the product of the weights and a half of a tile of v.
template <int kHalf>
SCOREMOD_FUNCTION void issue_values(Sums<1, kHalfOfV>& product, unsigned (&weights)[kKeys / 32][4], unsigned v) {
  fence_operand(weights);
  wgmma_fence();
  issue_float8_ab<kHalfOfV, kKeys, kDimV>(product, weights, moved_by(v, kHalf * kHalfOfV * kRowBytes));
  wgmma_commit();
}

// Waits for the product of a half, and adds it to o.
template <int kHalf>
SCOREMOD_FUNCTION void add_values(SoftmaxRows& rows, Sums<1, kHalfOfV>& product) {
  wgmma_wait<0>();
  fence_operand(product.at[0]);
#pragma unroll
  for (int n = 0; n < kHalfOfV / 8; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) rows.output.at[0][kHalf * kHalfOfV / 8 + n][e] += product.at[0][n][e];
}

// Main loop of a consumer warpgroup over all tiles of keys from the walk's on. `first_query` is the first of the warp's
// 16. A tile's score_mod, mask and row max overlap one half of the last tile's product of weights and v. Its
// exponentials overlap the other half. Warpgroups take turns for exponentials and rounding, so that one has the MUFU
// for itself and the other the ALU. Turns to issue WGMMAs cost an H100 2 to 9 %.
SCOREMOD_FUNCTION void consume_float8(const Arguments& p, const Float8Tiles& tiles, SoftmaxRows& rows,
                                      TileWalk<false>& walk, int b, int h, int first_query) {
  const AttentionArguments& call = p.call;
  const unsigned q = moved_by(float8_view(tiles.q, kQueries), group_number() * 64 * kRowBytes);
  const unsigned k = float8_view(tiles.k, kKeys), v = float8_view(tiles.v, kDimV);
  Ring<kStages> ring;
  Sums<1, kKeys> scores;
  Sums<1, kHalfOfV> product;
  unsigned weights[kKeys / 32][4];
  float factors[1][2];
  const auto issue_scores = [&] {
    wgmma_fence();
    issue_float8_abt<kDimQk, kQueries>(scores, q, moved_by(k, ring.stage * Float8Tiles::kKBytes));
    wgmma_commit();
  };
  mbarrier_wait(tiles.k_full + ring.stage, ring.phase);
  issue_scores();
  int first_key = walk.tile * kKeys;
  bool partial = walk.partial, more = walk.next(call, b, h);
  wgmma_wait<0>();
  fence_operand(scores.at[0]);
  consumer_release(tiles.k_empty + ring.stage);
  modify_tile(p, scores, rows, factors, partial, b, h, first_query, first_key);
  exponentiate(p, scores, rows, b, h, first_query, first_key);
  round_to_8bit<kKeys>(weights, scores);
  while (more) {
    const Ring<kStages> last = ring;
    ring.advance();
    const unsigned values = moved_by(v, last.stage * Float8Tiles::kVBytes);
    mbarrier_wait(tiles.k_full + ring.stage, ring.phase);
    issue_scores();
    mbarrier_wait(tiles.v_full + last.stage, last.phase);
    issue_values<0>(product, weights, values);
    first_key = walk.tile * kKeys;
    partial = walk.partial;
    more = walk.next(call, b, h);
    wgmma_wait<1>();
    fence_operand(scores.at[0]);
    consumer_release(tiles.k_empty + ring.stage);
    const bool rescale = modify_tile(p, scores, rows, factors, partial, b, h, first_query, first_key);
    add_values<0>(rows, product);
    issue_values<1>(product, weights, values);
    scheduler_wait();
    fence_operand(scores.at[0]);
    exponentiate(p, scores, rows, b, h, first_query, first_key);
    add_values<1>(rows, product);
    consumer_release(tiles.v_empty + last.stage);
    // All of o so far has the weights of the last row max.
    if (rescale) rescale_output(rows, factors);
    round_to_8bit<kKeys>(weights, scores);
    fence_operand(weights);
    scheduler_pass();
  }
  const unsigned values = moved_by(v, ring.stage * Float8Tiles::kVBytes);
  mbarrier_wait(tiles.v_full + ring.stage, ring.phase);
  issue_values<0>(product, weights, values);
  add_values<0>(rows, product);
  issue_values<1>(product, weights, values);
  add_values<1>(rows, product);
}

// Consumer warpgroup: waits for q, runs the main loop, and stores its rows. Returns whether an output is not finite.
SCOREMOD_FUNCTION bool compute_float8(const Arguments& p, const Float8Tiles& tiles, const QueryPlace& item) {
  const AttentionArguments& call = p.call;
  const int b = item.b, h = item.h, first_query = item.query_tile * kQueries + threadIdx.x / 32 * 16;
  SoftmaxRows rows;
  rows.clear();
  TileWalk<false> walk;
  walk.begin(call, b, h, item.query_tile);
  if (walk.next(call, b, h)) {
    scheduler_begin();
    mbarrier_wait(tiles.q_full, 0);
    consume_float8(p, tiles, rows, walk, b, h, first_query);
  }
  float factors[1][2];
  const bool not_finite = close_softmax(p, rows, factors, b, h, first_query);
  const float of_values = value_factor(p, h / call.group);
  for (float& factor : factors[0]) factor *= of_values;
  // A row of the tile of q is as many bytes as one of half as many halves.
  store_through_tile<kDimV, kDimQk / 2>(rows.output, factors, rows_of<Output>(call.o, b, h), (Half*)tiles.q,
                                        first_query, call.seq_q);
  return not_finite;
}

// Each tile would read the scales of q and k anew; so a register keeps their product.
SCOREMOD_FUNCTION Arguments with_scale(Arguments p) {
  p.call.scale = scale_of_products(p);
  return p;
}

/*{kernel float8_forward}*/
// attention_forward with WGMMA of e4m3, a CTA for each tile of queries of a batch and head.
SCOREMOD_KERNEL(kThreads + kGroup, 1) float8_forward(SCOREMOD_MAPPED_ARGUMENT all) {
  SCOREMOD_SHARED(unaligned);
  const Float8Tiles tiles(aligned_tiles(unaligned));
  const AttentionArguments& call = all.rest.call;
  const QueryPlace item = query_place(call, blockIdx.x);
  if (threadIdx.x == 0) tiles.begin();
  cta_sync();
  if (threadIdx.x >= kThreads) {
    setmaxnreg_dec<kProducerRegisters>();
    produce_float8(all, tiles, item);
    return;
  }
  setmaxnreg_inc<kConsumerRegisters>();
  if (!any_of_block(compute_float8(with_scale(all.rest), tiles, item))) return;
  const Arguments p = with_scale(all.rest);
  // All consumers compute the rows once more, one after the other, with the tile of q as scratch.
  for (int i = item.query_tile * kQueries; i < (item.query_tile + 1) * kQueries && i < call.seq_q; ++i)
    forward_row(p, (float*)tiles.q, item.b, item.h, i);
}
/*{}*/
