// Rows of a Hopper decode kernel that go from accumulators to o at once, because no other CTA or team has keys of
// theirs.
#pragma once

#include "backend/kernels/hopper/tiles.cuh"
#include "backend/kernels/split_kv/partials.cuh"

// Four lanes have a row's words of four neighbouring columns of eight dims, word i of column i each. Gives each lane
// all words of one column: word i comes from lane i of the four.
SCOREMOD_FUNCTION void transpose_words(unsigned (&words)[4]) {
  const int lane = threadIdx.x % 4;
#pragma unroll
  for (int distance = 1; distance < 4; distance *= 2) {
    const bool upper = (lane & distance) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & distance) != 0) continue;
      const unsigned other = exchange_bits(upper ? words[i] : words[i + distance], distance);
      words[i] = upper ? other : words[i];
      words[i + distance] = upper ? words[i + distance] : other;
    }
  }
}

// Stores the lane's pairs of a row, times a factor, where a word of 16 bytes may be stored at once. All lanes call it;
// those that have no row pass null.
SCOREMOD_FUNCTION void store_words(const SoftmaxRows& rows, int half, float factor, Half* at) {
  const int lane = threadIdx.x % 4;
#pragma unroll
  for (int n = 0; n < kDimV / 8; n += 4) {
    unsigned words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* const pair = &rows.output.at[0][n + i][half * 2];
      words[i] = pair_of(pair[0] * factor, pair[1] * factor);
    }
    transpose_words(words);
    if (at != nullptr) copy_word(at + (n + lane) * 8, words);
  }
}

// Writes o and lse of the warp's rows, from `warp_row` of the tile on, which have all of their keys. Its dims of v
// begin at `first_dim`. Returns whether an output is not finite.
SCOREMOD_FUNCTION bool store_whole(const Arguments& p, const KeyShare& own, const SoftmaxRows& rows, int warp_row,
                                   int first_dim) {
  const AttentionArguments& call = p.call;
  const int lane = threadIdx.x % 32, count = rows_of_tile(call, own);
  bool not_finite = any_not_finite(rows.output, warp_row, count);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = rows.sum[0][half], lse;
    sum += exchange(sum, 1);
    sum += exchange(sum, 2);
    const int row = warp_row + half * 8 + lane / 4;
    const RowOwner of = owner_of(call, own.h, own.first_row() + (row < count ? row : 0));
    const bool there = row < count && is_there(call, own.b, of.q);
    const float closed = close_row(kSink ? sink_of(p, of.h) : -infinity(), rows.reference[0][half], sum, lse);
    const float factor = sum == 0.0f ? 0.0f : dropped(call, closed, true) / sum * value_factor(p, own.kv_head);
    const RowsOf<Output> to = rows_of<Output>(call.o, own.b, of.h);
    Output* const at = there ? to.at(of.q) + first_dim * to.dim : nullptr;
    not_finite = not_finite || (there && !is_finite(sum));
    if (there && first_dim == 0 && lane % 4 == 0) store_row_terms(p, own.b, of.h, of.q, lse, rows.largest[0][half]);
    if constexpr (kIsHalf<Output> && kDimV % 32 == 0) {
      if (to.aligned) {
        store_words(rows, half, factor, (Half*)at);
        continue;
      }
    }
#pragma unroll
    for (int n = 0; n < padded(kDimV) / 8; ++n) {
      if (!there) break;
      const int dim = n * 8 + lane % 4 * 2;
      if (dim < kDimV) store_element(at + dim * to.dim, rows.output.at[0][n][half * 2] * factor);
      if (dim + 1 < kDimV) store_element(at + (dim + 1) * to.dim, rows.output.at[0][n][half * 2 + 1] * factor);
    }
  }
  return not_finite;
}
