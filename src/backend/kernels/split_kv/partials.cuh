// Split-KV partials: how they are stored and merged in ascending order, and o and lse from all of them. The last CTA to
// finish merges the splits of the same rows. Rows that one CTA or team has all keys of need no partials.
#pragma once

#include "backend/kernels/shared/softmax.cuh"
#include "backend/kernels/split_kv/packed_rows.cuh"
#include "backend/kernels/split_kv/storage.cuh"

constexpr PartialStorage kPartialStorage{kQueries, kCtaDimV};
constexpr int kPartRow = kPartialStorage.row_floats, kPartFloats = kPartialStorage.floats;
constexpr int kPartTerms = padded(kCtaDimV);  // where a row's max, sum and largest value lie
static_assert(kTeams * kPartFloats >= 2 * kThreads, "forward_row() has room where parts were");

// The number of the tile of rows among those of all batches and KV heads.
SCOREMOD_FUNCTION long long tile_number(const AttentionArguments& call, const KeyShare& own) {
  return ((long long)own.b * kv_heads_of(call) + own.kv_head) * call.query_tiles + own.row_tile;
}
// The first of the tile's call.splits partials.
SCOREMOD_FUNCTION float* parts_of(const AttentionArguments& call, const KeyShare& own) {
  return call.parts + tile_number(call, own) * call.splits * kPartFloats;
}

// The dim of column `column` of the n-th eight columns of the output. With FP8 values, sixteen dims are two matrices of
// every second one: decode.cuh.
SCOREMOD_FUNCTION int dim_of_column(int n, int column) {
  return kKeyKind == kElementKeys ? n * 8 + column : n / 2 * 16 + column * 2 + n % 2;
}

// Stores the warp's first `count` rows, which are those of the CTA's tile from `to` on. Its dims of v begin at
// `first_dim`.
SCOREMOD_FUNCTION void store_part(const SoftmaxRows& rows, float* to, int count = kWarpRows, int first_dim = 0) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool there = m * 16 + half * 8 + lane / 4 < count;
      float* const row = to + (m * 16 + half * 8 + lane / 4) * kPartRow;
#pragma unroll
      for (int n = 0; n < padded(kDimV) / 8; ++n) {
        const float* const pair = &rows.output.at[m][n][half * 2];
        float* const at = row + first_dim;
        if (!there) continue;
        if (kKeyKind == kElementKeys) {
          store_pair(at + n * 8 + lane % 4 * 2, pair[0], pair[1]);
        } else {
          for (int i = 0; i < 2; ++i) at[dim_of_column(n, lane % 4 * 2 + i)] = pair[i];
        }
      }
      float sum = rows.sum[m][half];
      sum += exchange(sum, 1);
      sum += exchange(sum, 2);
      if (lane % 4 != 0 || !there) continue;
      row[kPartTerms] = rows.row_max[m][half];
      row[kPartTerms + 1] = sum;
      row[kPartTerms + 2] = rows.largest[m][half];
    }
}

// Four neighbours in a row of a partial.
struct alignas(16) FourFloats {
  float at[4];
};

// One row of several parts that a warp adds up: a thread has every 32nd four of its outputs. All parts are looked at
// before the first is added. The code is short, because a CTA runs it once: waits for instructions would be longer
// than those for memory.
struct MergedRow {
  static constexpr int kFours = (kCtaDimV + 127) / 128;
  float row_max, sum, largest;
  FourFloats output[kFours];

  // The first dim of the thread's i-th four, and whether the row has it.
  SCOREMOD_MEMBER static int dim_of_four(int i) { return (threadIdx.x % 32 + 32 * i) * 4; }
  SCOREMOD_MEMBER static bool has_four(int i) { return kCtaDimV % 128 == 0 || dim_of_four(i) < padded(kCtaDimV); }
  SCOREMOD_MEMBER void clear() {
    row_max = largest = -infinity();
    sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kFours; ++i) output[i] = {};
  }
  // `row` is of a part. One that is not `there` is read, so that nothing waits for a branch, and counts for nothing.
  SCOREMOD_MEMBER void look_at(const float* row, bool there = true) {
    const float of_part = row[kPartTerms], largest_of_part = row[kPartTerms + 2];
    row_max = fmaxf(row_max, there ? of_part : -infinity());
    largest = fmaxf(largest, there ? largest_of_part : -infinity());
  }
  // With the parts that other lanes have looked at.
  SCOREMOD_MEMBER void look_at_lanes() {
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      row_max = fmaxf(row_max, exchange(row_max, distance));
      largest = fmaxf(largest, exchange(largest, distance));
    }
  }
  SCOREMOD_MEMBER void add(const float* row, bool there = true) {
    const float weight = exp2_of(row[kPartTerms] - (row_max == -infinity() ? 0.0f : row_max));
    const float factor = there ? weight : 0.0f;
    sum = multiply_add(row[kPartTerms + 1], factor, sum);
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      if (!has_four(i)) continue;
      const FourFloats of_part = *(const FourFloats*)(row + dim_of_four(i));
#pragma unroll
      for (int j = 0; j < 4; ++j) output[i].at[j] = multiply_add(of_part.at[j], factor, output[i].at[j]);
    }
  }
  // `row` is of the first part, and the same of the next is kPartFloats from there.
  template <int kParts>
  SCOREMOD_MEMBER void merge(const float* row) {
    clear();
#pragma unroll
    for (int i = 0; i < kParts; ++i) look_at(row + i * kPartFloats);
#pragma unroll
    for (int i = 0; i < kParts; ++i) add(row + i * kPartFloats);
  }
  SCOREMOD_MEMBER void store(float* row) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kFours; ++i)
      if (has_four(i)) *(FourFloats*)(row + dim_of_four(i)) = output[i];
    if (lane < 3) row[kPartTerms + lane] = lane == 0 ? row_max : lane == 1 ? sum : largest;
  }
};

// Whether a batch has this query.
SCOREMOD_FUNCTION bool is_there(const AttentionArguments& call, int b, int q) {
  return !kRaggedQueries || q < queries_of(call, b);
}

// Returns whether an output is not finite.
SCOREMOD_FUNCTION bool store_merged(const Arguments& p, const MergedRow& row, int b, int h, int q) {
  const AttentionArguments& call = p.call;
  const int lane = threadIdx.x % 32;
  float sum = row.sum, lse;
  const float factor = dropped(call, close_row(kSink ? sink_of(p, h) : -infinity(), row.row_max, sum, lse), true) /
                       sum * value_factor(p, h / call.group);
  const RowsOf<Output> to = rows_of<Output>(call.o, b, h);
  Output* const to_row = to.at(q);
  bool not_finite = !is_finite(sum);
#pragma unroll
  for (int i = 0; i < MergedRow::kFours; ++i) {
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      const int dim = MergedRow::dim_of_four(i) + j;
      if (kCtaDimV % 128 != 0 && dim >= kCtaDimV) continue;
      const bool is_pair = kCtaDimV % 2 == 0 || dim + 1 < kCtaDimV;
      const float first = row.output[i].at[j], second = is_pair ? row.output[i].at[j + 1] : 0.0f;
      not_finite = not_finite || !is_finite(first) || !is_finite(second);
      const float low = sum == 0.0f ? 0.0f : first * factor, high = sum == 0.0f ? 0.0f : second * factor;
      if (to.aligned && is_pair) {
        store_pair(to_row + dim, low, high);
        continue;
      }
      store_element(to_row + dim * to.dim, low);
      if (is_pair) store_element(to_row + (dim + 1) * to.dim, high);
    }
  }
  if (lane == 0) store_row_terms(p, b, h, q, lse, row.largest);
  return not_finite;
}

// Counts one more of the tile's `shares` of keys as stored, and returns whether it is the last. The tile's arrival
// counter is tagged with a call id, so it needs no reset. The last CTA leaves 0, for a CUDA graph that repeats a call
// with its id.
SCOREMOD_FUNCTION bool comes_last(const AttentionArguments& call, const KeyShare& own, int shares) {
  constexpr int kCountBits = 16;
  unsigned long long* const word = call.shares + tile_number(call, own);
  for (unsigned long long seen = 0;;) {
    const int count = 1 + (seen >> kCountBits == call.number ? (int)(seen & ((1u << kCountBits) - 1)) : 0);
    const bool last = count == shares;
    const unsigned long long found = exchange_word(word, seen, last ? 0 : call.number << kCountBits | (unsigned)count);
    if (found == seen) return last;
    seen = found;
  }
}

// Returns whether all other of the tile's `shares` of keys are stored too, and may be read. All threads that have the
// CTA's rows call it after they stored their partial.
SCOREMOD_FUNCTION bool is_last_share(const AttentionArguments& call, const KeyShare& own, int shares) {
  order_memory();
  block_barrier();
  const bool last = any_of_block(threadIdx.x == 0 && comes_last(call, own, shares));
  order_memory();
  return last;
}

// How many of the tile's rows a head has.
SCOREMOD_FUNCTION int rows_of_tile(const AttentionArguments& call, const KeyShare& own) {
  const int rest = rows_of_head(call) - own.first_row();
  return rest < kQueries ? rest : kQueries;
}

// The CTA that came last merges the partials of all splits. A warp merges several rows at once, because each waits for
// memory twice. Returns whether an output is not finite.
SCOREMOD_FUNCTION bool store_shares(const Arguments& p, const KeyShare& own) {
  constexpr int kAtOnce = 4;
  const AttentionArguments& call = p.call;
  const int first_row = own.first_row(), end = rows_of_tile(call, own);
  const float* const parts = parts_of(call, own);
  bool not_finite = false;
#pragma unroll 1
  for (int first = threadIdx.x / 32; first < end; first += kAtOnce * kWarps) {
    MergedRow rows[kAtOnce];
    const float* from[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int row = first + i * kWarps;
      from[i] = parts + (row < end ? row : first) * kPartRow;
      rows[i].clear();
    }
#pragma unroll 2
    for (int part = 0; part < call.splits; ++part)
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) rows[i].look_at(from[i] + (long long)part * kPartFloats);
#pragma unroll 2
    for (int part = 0; part < call.splits; ++part)
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) rows[i].add(from[i] + (long long)part * kPartFloats);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int row = first + i * kWarps;
      if (row >= end) continue;
      const RowOwner of = owner_of(call, own.h, first_row + row);
      if (is_there(call, own.b, of.q)) not_finite = store_merged(p, rows[i], own.b, of.h, of.q) || not_finite;
    }
  }
  return not_finite;
}

// Computes the tile's rows again, by plain sums, where an output is not finite.
template <class Crew>
SCOREMOD_FUNCTION void rows_again(const Arguments& p, const KeyShare& own, float* scratch, const Crew& crew) {
  const int count = rows_of_tile(p.call, own);
  for (int row = 0; row < count; ++row) {
    const RowOwner of = owner_of(p.call, own.h, own.first_row() + row);
    if (!is_there(p.call, own.b, of.q)) continue;
    forward_row(p, scratch, own.b, of.h, of.q, crew);
  }
}

// Merges the teams' rows into o and lse, or into a partial. All threads that have the CTA's rows call it when nobody
// reads its tiles any more. `scratch` has room for a partial of each team. The warp's rows are those of the tile from
// `warp_row` on.
SCOREMOD_FUNCTION void end_rows(const Arguments& p, const SoftmaxRows& rows, const KeyShare& own, int team,
                                int warp_row, float* scratch) {
  const AttentionArguments& call = p.call;
  const int warp = threadIdx.x / 32, first_row = own.first_row(), count = rows_of_head(call) - first_row;
  if (warp_row < count) store_part(rows, scratch + team * kPartFloats + warp_row * kPartRow);
  block_barrier();
  float* const to = parts_of(call, own) + (long long)own.split * kPartFloats;
  bool not_finite = false;
  for (int row = warp; row < kQueries && row < count; row += kWarps) {
    const RowOwner of = owner_of(call, own.h, first_row + row);
    MergedRow merged;
    merged.merge<kTeams>(scratch + row * kPartRow);
    if (call.splits > 1)
      merged.store(to + row * kPartRow);
    else if (is_there(call, own.b, of.q))
      not_finite = store_merged(p, merged, own.b, of.h, of.q) || not_finite;
  }
  if (call.splits > 1) {
    if (!is_last_share(call, own, call.splits)) return;
    not_finite = store_shares(p, own);
  }
  if (any_of_block(not_finite)) rows_again(p, own, scratch, ConsumerThreads());
}

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

// Writes o and lse of the warp's rows from accumulators, from `warp_row` of the tile on, because no other CTA or team
// has keys of theirs. Its dims of v begin at `first_dim`. Returns whether an output is not finite.
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
    const float closed = close_row(kSink ? sink_of(p, of.h) : -infinity(), rows.row_max[0][half], sum, lse);
    const float factor = sum == 0.0f ? 0.0f : dropped(call, closed, true) / sum * value_factor(p, own.kv_head);
    const RowsOf<Output> to = rows_of<Output>(call.o, own.b, of.h);
    Output* const at = there ? to.at(of.q) + first_dim * to.dim : nullptr;
    not_finite = not_finite || (there && !is_finite(sum));
    if (there && first_dim == 0 && lane % 4 == 0) store_row_terms(p, own.b, of.h, of.q, lse, rows.largest[0][half]);
    if constexpr (kSameType<Output, Half> && kDimV % 32 == 0) {
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
