// hopper_wide_decode: the persistent decode kernel (split-KV, pack-GQA) for heads of v wider than 256, whose
// accumulators two warpgroups share: both have all rows, and half of v's dims each. The first one makes the weights and
// passes them on.
#pragma once

#include "backend/kernels/split_kv/wide_tiles.cuh"

// Both warpgroups' threads have the same rows, so that one passes on what it has in registers: words of 16 bytes, each
// warp's next to each other.
template <int kCount>
SCOREMOD_FUNCTION void put_words(unsigned char* to, const unsigned (&words)[kCount][4]) {
  unsigned char* const own = to + threadIdx.x % kGroup / 32 * (kCount * 512) + threadIdx.x % 32 * 16;
#pragma unroll
  for (int i = 0; i < kCount; ++i) copy_word(own + i * 512, words[i]);
}
template <int kCount>
SCOREMOD_FUNCTION void take_words(unsigned (&words)[kCount][4], const unsigned char* from) {
  const unsigned char* const own = from + threadIdx.x % kGroup / 32 * (kCount * 512) + threadIdx.x % 32 * 16;
#pragma unroll
  for (int i = 0; i < kCount; ++i) copy_word(words[i], own + i * 512);
}

// A warpgroup's rows of a piece, and its half of v's dims.
struct WideRows {
  SoftmaxRows rows;
  unsigned q, ring;  // views of tiles
  int group, warp_row;

  SCOREMOD_MEMBER WideRows(const WideTiles& tiles, int number)
      : q(tile_view(tiles.q, kQueries)),
        ring(tile_view(tiles.ring, kKeys)),
        group(number),
        warp_row(threadIdx.x % kGroup / 32 * 16) {}
  SCOREMOD_MEMBER int first_dim() const { return group * kDimV; }
  SCOREMOD_MEMBER unsigned keys_of_stage(int stage) const { return moved_by(ring, stage * WideTiles::kTileBytes); }
  // Adds the stage's values, and gives it back.
  SCOREMOD_MEMBER void add_values(const WideTiles& tiles, unsigned (&weights)[kKeys / 16][4], int stage) {
    fence_operand(weights);
    fence_operand(rows.output.at[0]);
    wgmma_fence();
    issue_wgmma_ab<kDimV, kKeys>(rows.output, weights, moved_by(keys_of_stage(stage), first_dim() / 64 * kKeys * 128));
    wgmma_commit();
    wgmma_wait<0>();
    fence_operand(rows.output.at[0]);
    consumer_release(tiles.empty + stage);
  }
};

// Steps through the stages of a piece. next() waits for one that has keys, and returns false at the next piece's first
// stage, which it leaves full.
struct StageWalk {
  Ring<kStages> ring;
  bool first;
  int stage, tile;

  SCOREMOD_MEMBER bool next(const WideTiles& tiles) {
    for (;; first = false) {
      mbarrier_wait(tiles.full + ring.stage, ring.phase);
      if (!first && uniform(tiles.steps[ring.stage].begins) != 0) return false;
      take();
      tile = uniform(tiles.steps[stage].tile);
      if (tile >= 0) break;
      consumer_release(tiles.empty + stage);
    }
    first = false;
    fence_proxy_async();  // cp.async wrote the tile
    return true;
  }
  // Goes on to the stage of the tile's values, where they have one of their own. That of its keys was given back.
  SCOREMOD_MEMBER void next_values(const WideTiles& tiles) {
    mbarrier_wait(tiles.full + ring.stage, ring.phase);
    take();
    fence_proxy_async();
  }
  SCOREMOD_MEMBER void take() {
    stage = ring.stage;
    ring.advance();
  }
};

// The warpgroup that makes the weights.
SCOREMOD_FUNCTION void make_weights(const Arguments& p, const WideTiles& tiles, const KeyShare& own, StageWalk& walk,
                                    WideRows& mine) {
  const int first_row = own.first_row() + mine.warp_row;
  const bool has_rows = first_row < rows_of_head(p.call), is_view = is_view_of_keys(p.call.k, p.call.v);
  Sums<1, kKeys> scores;
  unsigned weights[kKeys / 16][4];
  while (walk.next(tiles)) {
    wgmma_fence();
    issue_wgmma_abt<kDimQk, kQueries, kKeys>(scores, mine.q, mine.keys_of_stage(walk.stage));
    wgmma_commit();
    wgmma_wait<0>();
    fence_operand(scores.at[0]);
    if (!is_view) consumer_release(tiles.empty + walk.stage);
    float factors[1][2] = {{1.0f, 1.0f}};
    if (has_rows) {
      const int first_key = walk.tile / 2 * kKeys;
      if (modify_tile(p, scores, mine.rows, factors, walk.tile % 2 != 0, own.b, own.h, first_row, first_key))
        rescale_output(mine.rows, factors);
      exponentiate(p, scores, mine.rows, own.b, own.h, first_row, first_key);
    }
    round_to_16bit<kKeys>(weights, scores);
    meet(kWeightsEmpty, kThreads);
    put_words(tiles.weights, weights);
    store_pair(tiles.factors + threadIdx.x * 2, factors[0][0], factors[0][1]);
    arrive_at(kWeightsFull, kThreads);
    if (!is_view) walk.next_values(tiles);
    mine.add_values(tiles, weights, walk.stage);
  }
}

// The other one, which adds its dims of the values.
SCOREMOD_FUNCTION void take_weights(const Arguments& p, const WideTiles& tiles, StageWalk& walk, WideRows& mine) {
  const bool is_view = is_view_of_keys(p.call.k, p.call.v);
  unsigned weights[kKeys / 16][4];
  while (walk.next(tiles)) {
    if (!is_view) {
      consumer_release(tiles.empty + walk.stage);
      walk.next_values(tiles);
    }
    meet(kWeightsFull, kThreads);
    take_words(weights, tiles.weights);
    const FloatPair pair = *(const FloatPair*)(tiles.factors + threadIdx.x % kGroup * 2);
    arrive_at(kWeightsEmpty, kThreads);
    const float factors[1][2] = {{pair.low, pair.high}};
    if (ballot(pair.low != 1.0f || pair.high != 1.0f) != 0) rescale_output(mine.rows, factors);
    mine.add_values(tiles, weights, walk.stage);
  }
}

// Gives the other warpgroup the rows' running max, sums and largest values.
SCOREMOD_FUNCTION void pass_on_rows(const WideTiles& tiles, WideRows& mine) {
  SoftmaxRows& rows = mine.rows;
  unsigned words[2][4];
  if (mine.group == 0) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      words[half][0] = bits_of(rows.row_max[0][half]);
      words[half][1] = bits_of(rows.sum[0][half]);
      words[half][2] = bits_of(rows.largest[0][half]);
      words[half][3] = 0;
    }
    meet(kWeightsEmpty, kThreads);
    put_words(tiles.weights, words);
    arrive_at(kWeightsFull, kThreads);
    return;
  }
  meet(kWeightsFull, kThreads);
  take_words(words, tiles.weights);
  arrive_at(kWeightsEmpty, kThreads);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    rows.row_max[0][half] = float_of_bits(words[half][0]);
    rows.sum[0][half] = float_of_bits(words[half][1]);
    rows.largest[0][half] = float_of_bits(words[half][2]);
  }
}

// A piece of the CTA's share: its rows, all of its keys, and what becomes of them.
SCOREMOD_FUNCTION void consume_piece(const Arguments& p, const WideTiles& tiles, const OpenParts& parts,
                                     StageWalk& walk, WideRows& mine) {
  const AttentionArguments& call = p.call;
  const TilePiece& piece = tiles.steps[walk.ring.stage].piece;
  const KeyShare own = piece.own;
  const bool goes_on = piece.opens_right(), is_open = goes_on || piece.opens_left();
  if (is_open && threadIdx.x == 0) tiles.open_tiles[goes_on ? 0 : 1] = {own, piece.count, piece.first};
  load_queries(call, own, [&](int row, int dim) { return word_of_tile<kQueries>(tiles.q, row, dim); });
  wait_for_copies();
  fence_proxy_async();
  block_barrier();  // q is there, and nobody reads the piece any more
  mine.rows.clear();
  walk.first = true;
  if (mine.group == 0)
    make_weights(p, tiles, own, walk, mine);
  else
    take_weights(p, tiles, walk, mine);
  pass_on_rows(tiles, mine);
  if (is_open) {
    store_part(mine.rows, parts.of_cta(call, parts.cta, goes_on) + mine.warp_row * kPartRow,
               rows_of_tile(call, own) - mine.warp_row, mine.first_dim());
  } else if (any_of_block(store_whole(p, own, mine.rows, mine.warp_row, mine.first_dim()))) {
    rows_again(p, own, (float*)tiles.weights, ConsumerThreads());
  }
}

SCOREMOD_FUNCTION void consume(const Arguments& p, const WideTiles& tiles, const OpenParts& parts) {
  WideRows mine(tiles, group_number());
  if (mine.group == 1) arrive_at(kWeightsEmpty, kThreads);
  StageWalk walk{};
  for (;;) {
    mbarrier_wait(tiles.full + walk.ring.stage, walk.ring.phase);
    if (uniform(tiles.steps[walk.ring.stage].tile) == Step::kEnd) break;
    consume_piece(p, tiles, parts, walk, mine);
  }
  block_barrier();
  merge_open_tiles(p, parts, tiles.open_tiles, kWideStorage.open_tiles_count, false, tiles.not_finite);
  block_barrier();
#pragma unroll 1
  for (int i = 0; i < kWideStorage.open_tiles_count; ++i)
    if (tiles.not_finite[i] != 0) rows_again(p, tiles.open_tiles[i].own, (float*)tiles.weights, ConsumerThreads());
}

SCOREMOD_KERNEL(kThreads + kProducers, 1) hopper_wide_decode(SCOREMOD_MAPPED_ARGUMENT all) {
  SCOREMOD_SHARED(unaligned);
  const Arguments& p = all.rest;
  const AttentionArguments& call = p.call;
  const WideTiles tiles(aligned_tiles(unaligned));
  long long* const sums = (long long*)tiles.weights;
  const bool copies = threadIdx.x >= kThreads;
  if (threadIdx.x == kThreads) tiles.begin(all);
  if (!copies) add_up_chunks(call, sums);
  cta_sync();
  const OpenParts parts = share_of_cta(call, sums, blockIdx.x);
  if (parts.cta >= parts.ctas.parts) return;
  if (copies) {
    setmaxnreg_dec<kWideProducerRegisters>();
    const int warp = uniform((threadIdx.x - kThreads) / 32);
    if (warp < kCopierWarps)
      load_tiles(all, tiles);
    else if (warp == kCopierWarps)
      find_tiles(p, tiles, parts);
  } else {
    setmaxnreg_inc<kWideConsumerRegisters>();
    consume(p, tiles, parts);
  }
}
