// The parts of dq that are not MMAs: the gradients of a tile's scores, and rows by plain sums.
#pragma once

#include "backend/kernels/shared/derivative.cuh"
#include "backend/kernels/shared/memory.cuh"

// The gradient of a relative-position table, whose indices follow from kv_idx - q_idx. Contributions are summed along
// diagonals, in a fixed order and without atomics. A group of four warps has 64 rows of scores and walks over the
// columns. Rows are queries and columns keys; if kFused, rows are keys. A group leaves one sum for each diagonal of its
// rows; attention_operand_diagonals_I adds those of all groups.

constexpr int kDiagonalGroups = (kFused ? kKeys : kQueries) / kDiagonalRows;  // of a CTA
// Columns that a group takes at once.
constexpr int kDiagonalStep = kFused ? kFusedDiagonalStep : kKeyStep;
static_assert(kDifferenceTargets <= 1, "one table");
static_assert(kDifferenceTargets == 0 || kDiagonalRows + kDiagonalStep <= kDiagonalThreads,
              "a thread has one of a step's diagonals");

// Sums of a group: place y is that of (a column) - (its first row) = y - 63.
SCOREMOD_FUNCTION int diagonal_pitch(const AttentionArguments& call) {
  return (kFused ? call.query_tiles * kQueries : call.key_tiles * kKeys) + kDiagonalThreads;
}
// The number of groups for each batch and head.
SCOREMOD_FUNCTION int diagonal_groups(const AttentionArguments& call) {
  return (kFused ? call.key_tiles : call.query_tiles) * kDiagonalGroups;
}
SCOREMOD_FUNCTION float* diagonal_sums(const Arguments& p, int b, int h, int group) {
  const long long head = (long long)b * p.call.heads_q + h;
  return difference_target_sums(p) + (head * diagonal_groups(p.call) + group) * diagonal_pitch(p.call);
}
// The sums of the calling thread's group, in a CTA that has this tile.
SCOREMOD_FUNCTION float* own_diagonal_sums(const Arguments& p, int b, int h, int tile) {
  return diagonal_sums(p, b, h, tile * kDiagonalGroups + threadIdx.x / kDiagonalThreads);
}
// The place of a group's sum for kv - q = difference. A place below 0, or not below diagonal_pitch(), has no sum.
SCOREMOD_FUNCTION int diagonal_place(int difference, int group) {
  return (kFused ? -difference : difference) + group * kDiagonalRows + kDiagonalRows - 1;
}

constexpr DiagonalStorage kDiagonalStorage{kFused ? kKeys : kQueries, kDiagonalStep};
constexpr int kDiagonalsOfColumn = kDiagonalStorage.diagonals_of_column, kColumnPitch = kDiagonalStorage.column_pitch;
constexpr int kDiagonalWords = kDiagonalStorage.warp_words;

// Each thread sums its part of a warp's 16 rows of a step along diagonals.
struct DiagonalGains {
  float *words, *own;  // of the group's warps, and where the thread's begin
  float above[2];      // of the rows' upper half, whose diagonals go on in the lower half
  float carried[2];
  float sum;  // of the diagonal at `place`
  int place;

  // `shared` has kDiagonalStorage.bytes.
  SCOREMOD_MEMBER void begin(float* shared) {
    if (kDifferenceTargets == 0) return;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = threadIdx.x / kDiagonalThreads;
    words = shared + group * 4 * kDiagonalWords;
    own = shared + warp * kDiagonalWords + lane % 4 * 2 * kColumnPitch + 7 - lane / 4;
    sum = 0.0f;
    place = threadIdx.x % kDiagonalThreads;
  }
  // Element e of the columns 8 n and on, as Sums have them, in this order. Between a meeting of the group before the
  // first and one after the last.
  SCOREMOD_MEMBER void add(float gain, int n, int e) {
    const int i = e % 2;
    if (e < 2) {
      above[i] = gain;
      if (n == 0) carried[i] = 0.0f;
    } else {
      own[i * kColumnPitch + 8 * n] = carried[i] + gain;
      carried[i] = above[i];
      if (n == kDiagonalStep / 8 - 1) own[i * kColumnPitch + kDiagonalStep] = above[i];
    }
  }
  // Writes the diagonals before one that lies as far or farther to the group's diagonal_sums(): none is come back to.
  SCOREMOD_MEMBER void move_to(float* sums, int to) {
    for (; place < to; place += kDiagonalThreads) {
      sums[place] = sum;
      sum = 0.0f;
    }
  }
  // After a meeting of the group: the thread's diagonal of the step that begins at this column.
  SCOREMOD_MEMBER void add_step(float* sums, int first_column) {
    const int thread = threadIdx.x % kDiagonalThreads;
    const int ahead = (thread - first_column) & (kDiagonalThreads - 1);
    move_to(sums, first_column + ahead);
    float of_step = 0.0f;
#pragma unroll
    for (int warp = 0; warp < 4; ++warp)
#pragma unroll
      for (int column = 0; column < 8; ++column) {
        const int at = ahead - (kDiagonalRows - 1) + warp * 16 - column + 7 + 8;
        if ((unsigned)at < (unsigned)kDiagonalsOfColumn)
          of_step += words[warp * kDiagonalWords + column * kColumnPitch + at];
      }
    sum += of_step;
  }
  // No step comes after this.
  SCOREMOD_MEMBER void finish(float* sums, const AttentionArguments& call) { move_to(sums, diagonal_pitch(call)); }
};

constexpr int kWarpRows = 16 * kRowTiles;
static_assert(kQueries == kWarps * kWarpRows, "a tile of queries is a block's");
static_assert(kKeys % kKeyStep == 0, "a tile of keys is a number of steps");

// The steps that a CTA takes one after the other: kKeyStep keys each.
struct KeySteps {
  TileWalk<false> walk;
  int part;  // of the walk's tile

  SCOREMOD_MEMBER void begin(const AttentionArguments& call, int b, int h, int query_tile) {
    part = kKeys / kKeyStep;
    walk.begin(call, b, h, query_tile);
  }
  SCOREMOD_MEMBER bool next(const AttentionArguments& call, int b, int h) {
    if (++part < kKeys / kKeyStep && first_key() < call.seq_kv) return true;
    part = 0;
    return walk.next(call, b, h);
  }
  SCOREMOD_MEMBER int first_key() const { return walk.tile * kKeys + part * kKeyStep; }
};

// One row by plain sums over its kept keys alone, as forward_row() does it.
SCOREMOD_OUT_OF_LINE void backward_query_row(const Arguments& p, float* gradients, int b, int h, int q) {
  const AttentionArguments& call = p.call;
  const Rows ks = rows_of(call.k, b, h / call.group), to = rows_of(call.dq, b, h);
  int* const kept = (int*)(gradients + kThreads);
  const int keys = keys_of(call, b);
  constexpr int kDims = (kDimQk + kThreads - 1) / kThreads;
  float sums[kDims];
  for (int i = 0; i < kDims; ++i) sums[i] = 0.0f;
  for (int first = 0; first < keys; first += kThreads) {
    Differentiated own{};
    if (first + (int)threadIdx.x < keys) own = element_by_sums(p, b, h, q, first + threadIdx.x);
    block_barrier();
    gradients[threadIdx.x] = own.gradient;
    kept[threadIdx.x] = own.kept;
    block_barrier();
#pragma unroll 1
    for (int j = 0; j < kThreads && first + j < keys; ++j) {
      if (!kept[j]) continue;
#pragma unroll
      for (int i = 0; i < kDims; ++i) {
        const int d = threadIdx.x + i * kThreads;
        if (d < kDimQk) sums[i] = multiply_add(gradients[j], float_of(ks.at(first + j)[d * ks.dim]), sums[i]);
      }
    }
  }
  for (int i = 0; i < kDims; ++i) {
    const int d = threadIdx.x + i * kThreads;
    if (d < kDimQk) store_element(to.at(q) + d * to.dim, sums[i] * sum_factor(call));
  }
}

// A row's sums for operand gradients, over its keys: weights, weights times their centred gradients, and each target's
// contributions from both. Less the mean of the gradients, these are free of the rounding of the delta that they are
// centred by.
struct RowGains {
  float weights[kRowTiles][2], upstreams[kRowTiles][2];
  float of_weights[kRowTiles][2][kMaxRowTargets], of_centred[kRowTiles][2][kMaxRowTargets];
  DiagonalGains diagonals;

  SCOREMOD_MEMBER void clear() {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        weights[m][half] = upstreams[m][half] = 0.0f;
#pragma unroll
        for (int t = 0; t < kMaxRowTargets; ++t) of_weights[m][half][t] = of_centred[m][half][t] = 0.0f;
      }
  }
  // Element e of the columns 8 n and on of the rows' tile m.
  SCOREMOD_MEMBER void add(const Differentiated& element, int m, int n, int e) {
    const int half = e / 2;
    if (kDifferenceTargets > 0) diagonals.add(element.gains[kRowTargets + kKeyTargets], n, e);
    if (kRowTargets == 0) return;
    weights[m][half] += element.counted;
    upstreams[m][half] += element.upstream;
#pragma unroll
    for (int t = 0; t < kRowTargets; ++t) {
      of_weights[m][half][t] += element.gains[t];
      of_centred[m][half][t] = multiply_add(element.gains[t], element.centred, of_centred[m][half][t]);
    }
  }
};

// Writes the gradients of a CTA's rows; `parts` is a float of shared memory for each warp. All threads of the CTA but
// producers call it.
SCOREMOD_FUNCTION void write_row_gains(const Arguments& p, const RowGains& sums, const float (&terms)[kRowTiles][2][2],
                                       int b, int h, int query_tile, float* parts) {
  const AttentionArguments& call = p.call;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const long long head = (long long)b * call.heads_q + h;
  const float sink = kSink ? sink_of(p, h) : -infinity();
  float totals[kMaxRowTargets];
#pragma unroll
  for (int t = 0; t < kMaxRowTargets; ++t) totals[t] = 0.0f;
  const auto of_row = [](float x) {
    x += exchange(x, 1);
    return x + exchange(x, 2);
  };
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = query_tile * kQueries + warp * kWarpRows + m * 16 + half * 8 + lane / 4;
      float weight = of_row(sums.weights[m][half]), mean = of_row(sums.upstreams[m][half]);
      if (kSink) {
        // A sink's gradient is 0, and minus the delta when it is centred. The LSE's rounding is a factor of its weight
        // as it is of all others: it is no part of their mean.
        const float of_sink = weight_of_sink(sink, terms[m][half][0]);
        weight += of_sink;
        if (of_sink != 0.0f) mean = multiply_add(-of_sink, terms[m][half][1], mean);
      }
      if (weight != 0.0f) mean /= weight;
      // A delta that the call's o says is no mean of these.
      if (kGivenDeltas) mean = 0.0f;
#pragma unroll
      for (int t = 0; t < kRowTargets; ++t) {
        const float of_weight = of_row(sums.of_weights[m][half][t]), centred = of_row(sums.of_centred[m][half][t]);
        // With no weight there is nothing to take away, whatever the mean.
        const float gain = of_weight == 0.0f ? centred : multiply_add(-mean, of_weight, centred);
        if (lane % 4 != 0 || row >= call.seq_q) continue;
        if (row_target_is_total(t))
          totals[t] += gain;
        else
          row_target_sums(p, t)[head * call.seq_q + row] = gain;
      }
    }
#pragma unroll
  for (int t = 0; t < kRowTargets; ++t) {
    if (!row_target_is_total(t)) continue;
    const float total = sum_of_warp(totals[t]);
    block_barrier();
    parts[warp] = total;
    block_barrier();
    if (threadIdx.x != 0) continue;
    float all = 0.0f;
    for (int i = 0; i < kWarps; ++i) all += parts[i];
    row_target_sums(p, t)[head * call.query_tiles + query_tile] = all;
  }
}

// Writes zero gradients for a CTA whose rows are all beyond the end of a varlen sequence. All threads of the CTA but
// producers call it.
SCOREMOD_FUNCTION void write_no_gains(const Arguments& p, int b, int h, int query_tile) {
  const AttentionArguments& call = p.call;
  if (kTargets == 0 || (int)threadIdx.x >= kThreads) return;
  const long long head = (long long)b * call.heads_q + h;
#pragma unroll
  for (int t = 0; t < kRowTargets; ++t) {
    if (row_target_is_total(t) && threadIdx.x == 0) row_target_sums(p, t)[head * call.query_tiles + query_tile] = 0.0f;
    const int first = query_tile * kQueries;
    for (int q = first + threadIdx.x; !row_target_is_total(t) && q < first + kQueries && q < call.seq_q; q += kThreads)
      row_target_sums(p, t)[head * call.seq_q + q] = 0.0f;
  }
  for (int group = 0; kDifferenceTargets > 0 && group < kDiagonalGroups; ++group) {
    float* const sums = diagonal_sums(p, b, h, query_tile * kDiagonalGroups + group);
    for (int i = threadIdx.x; i < diagonal_pitch(call); i += kThreads) sums[i] = 0.0f;
  }
  for (int tile = 0; kElementTargets > 0 && tile < call.key_tiles; ++tile) clear_tile_gains(p, b, h, query_tile, tile);
}

// Turns products of q and k, and of d_o and v, into gradients of the scores times
// gradient_factor(), in place of the first.
template <bool kMasked>
SCOREMOD_FUNCTION void differentiate_tile(const Arguments& p, Sums<kRowTiles, kKeyStep>& scores,
                                          const Sums<kRowTiles, kKeyStep>& products,
                                          const float (&terms)[kRowTiles][2][2], RowGains& gains, int b, int h,
                                          int first_query, int first_key) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
    const RowsStay<kKeyStep> stay(p.call, b, h, first_query + m * 16, first_key);
#pragma unroll
    for (int n = 0; n < kKeyStep / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& x = scores.at[m][n][e];
        const int q = first_query + m * 16 + e / 2 * 8 + lane / 4, kv = first_key + n * 8 + lane % 4 * 2 + e % 2;
        const Differentiated element = differentiate<kMasked>(p, x, products.at[m][n][e], stay.at(n, e),
                                                              terms[m][e / 2][0], terms[m][e / 2][1], b, h, q, kv);
        gains.add(element, m, n, e);
        if (kElementTargets > 0) store_element_gains(p, element_gains(element), b, h, q, kv);
        x = element.gradient;
      }
  }
}
