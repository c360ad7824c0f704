// The online softmax of a forward: rows of scores of a CTA's queries, as accumulators hold them, become weights and row
// sums, tile after tile. At the end they become o and lse.
#pragma once

#include "backend/kernels/shared/program.cuh"

constexpr int kWarpRows = 16 * kRowTiles;
static_assert(kQueries * kTeams * kValueGroups == kWarps * kWarpRows, "a tile of rows is each team's and group's");

// Softmax state of a row. `row_max` is its running max as an exponent of 2, which is raised lazily, and `sum` the
// thread's part of the row sum. `output` is the unnormalized accumulator of O.
struct SoftmaxRows {
  float row_max[kRowTiles][2], sum[kRowTiles][2];
  float largest[kRowTiles][2];  // of the row's values, where kMaxLogit
  bool rescaled;                // whether the last tile raised the row max of one of the warp's rows
  Sums<kRowTiles, padded(kDimV)> output;

  SCOREMOD_MEMBER void clear() {
    output.clear();
    rescaled = true;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        row_max[m][half] = largest[m][half] = -infinity();
        sum[m][half] = 0.0f;
      }
  }
};

// Rescale threshold: a row max stays until a weight would exceed 2 to this power, so that few tiles rescale the
// accumulator. Weights of e4m3, whose largest number is 448 and whose smallest 2^-9, are 2^kWeightShift times as large.
constexpr float kRescaleThreshold = kFloat8Queries ? 0.75f : 8.0f, kWeightShift = kFloat8Queries ? 8.0f : 0.0f;
// The row max by which weights are as large as they are.
SCOREMOD_FUNCTION float shifted(float row_max) { return kFloat8Queries ? row_max - kWeightShift : row_max; }

// Scores in units whose exponential is a power of 2.
SCOREMOD_FUNCTION float exponent_unit(const Arguments& p) {
  return kScoreIsValue ? fabsf(score_scale(p)) * kLog2E : kLog2E;
}

// Sums and largest values of a row are made in so many chains, which don't wait for each other.
constexpr int kChains = 4;

// Whether modify() finds the largest values beside what it computes; of plain scores the integers below take less, but
// not beside the WGMMAs of FP8 numbers.
template <bool kMasked>
constexpr bool kFindsLargest = kMasked || !kScoreIsValue || kMaxLogit || kFloat8Queries;

// The numbers of an operand that TMA loads, for two neighbouring scores of a thread.
struct CopiedPair {
  float of[2];
};
// The absence of such an operand.
struct NothingCopied {
  static constexpr bool kThere = false;
  SCOREMOD_MEMBER CopiedPair pair(int, int) const { return {}; }
};

// Turns products of q and k into values, -inf where masked, in exponent_unit()s; `top` becomes the largest of each row
// of the thread's columns where kFindsLargest.
template <bool kMasked, class Copied>
SCOREMOD_FUNCTION void modify(const Arguments& p, Sums<kRowTiles, kKeys>& scores, float (&top)[kRowTiles][2], int b,
                              int h, int first_row, int first_key, const Copied& copied) {
  const int lane = threadIdx.x % 32, last_row = rows_of_head(p.call) - 1;
  const float factor = kScoreIsValue ? 1.0f : score_scale(p);
  if (kScoreIsValue && score_scale(p) < 0.0f) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) scores.at[m][n][e] = -scores.at[m][n][e];
  }
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + m * 16 + half * 8 + lane / 4;
      const RowOwner of = owner_of(p.call, h, kPackGqa && row > last_row ? last_row : row);
      float chains[2] = {-infinity(), -infinity()};
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        const CopiedPair pair = copied.pair(half, n);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& x = scores.at[m][n][half * 2 + i];
          const int key = first_key + n * 8 + lane % 4 * 2 + i;
          x = value_of<kMasked, Copied::kThere>(p, x * factor, b, of.h, of.q, key, pair.of[i]);
          if (kFindsLargest<kMasked>) chains[i] = fmaxf(chains[i], x);
        }
      }
      top[m][half] = fmaxf(chains[0], chains[1]);
    }
}

// The largest of 0 and a row's values in the thread's columns. Nonnegative floats order as their bits do as integers,
// and sm_90 takes the largest of three integers at once. If all values are negative, 0 is larger.
SCOREMOD_FUNCTION float largest_or_zero(const float (&values)[kKeys / 8][4], int half) {
  int chains[2] = {0, 0};
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
    const int first = (int)bits_of(values[n][half * 2]), second = (int)bits_of(values[n][half * 2 + 1]);
    chains[n % 2] = larger(larger(first, second), chains[n % 2]);
  }
  return float_of_bits((unsigned)larger(chains[0], chains[1]));
}
SCOREMOD_FUNCTION float largest_of(const float (&values)[kKeys / 8][4], int half) {
  float chains[2] = {-infinity(), -infinity()};
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i) chains[i] = fmaxf(chains[i], values[n][half * 2 + i]);
  return fmaxf(chains[0], chains[1]);
}

// Raises the running max of rows whose weights would grow too large. Returns whether it did for any row of the warp;
// the accumulator is then to be rescaled by the factors. For most tiles one comparison of each thread rules it out. If
// modify() left it to integers (not kFound), a tile after one that raised a row max gets the full check at once. This
// serves values that grow along the keys.
template <bool kFound>
SCOREMOD_FUNCTION bool update_row_max(const Arguments& p, const Sums<kRowTiles, kKeys>& values,
                                      float (&top)[kRowTiles][2], SoftmaxRows& rows, float (&factors)[kRowTiles][2]) {
  const float unit = exponent_unit(p);
  bool may_grow = kMaxLogit || (!kFound && rows.rescaled);
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) factors[m][half] = 1.0f;
  if (kFound || !may_grow) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float x = kFound ? top[m][half] : largest_or_zero(values.at[m], half);
        may_grow |= x * unit > rows.row_max[m][half] + kRescaleThreshold;
      }
    rows.rescaled = ballot(may_grow) != 0;
    if (!rows.rescaled) return false;
  }
  bool grows = false;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float x = kFound ? top[m][half] : largest_of(values.at[m], half);
      x = fmaxf(x, exchange(x, 1));
      x = fmaxf(x, exchange(x, 2));
      if (kMaxLogit) rows.largest[m][half] = fmaxf(rows.largest[m][half], x);
      top[m][half] = x * unit;
      grows |= top[m][half] > rows.row_max[m][half] + kRescaleThreshold;
    }
  rows.rescaled = ballot(grows) != 0;
  if (!rows.rescaled) return false;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float before = rows.row_max[m][half], row_max = fmaxf(before, top[m][half]);
      // With nothing kept so far, there is nothing to change.
      factors[m][half] = row_max == -infinity() ? 1.0f : exp2_of(before - row_max);
      rows.row_max[m][half] = row_max;
      rows.sum[m][half] *= factors[m][half];
    }
  return true;
}

// Applies score_mod and mask_mod to S = Q K^T of a tile, and updates the row max. Returns whether it was raised: the
// accumulator of O is then to be rescaled by the factors.
template <class Copied = NothingCopied>
SCOREMOD_FUNCTION bool modify_tile(const Arguments& p, Sums<kRowTiles, kKeys>& scores, SoftmaxRows& rows,
                                   float (&factors)[kRowTiles][2], bool partial, int b, int h, int first_row,
                                   int first_key, const Copied& copied = Copied{}) {
  float top[kRowTiles][2];
  if (partial) {
    modify<true>(p, scores, top, b, h, first_row, first_key, copied);
    if (!kFindsLargest<false>) return update_row_max<true>(p, scores, top, rows, factors);
  } else {
    modify<false>(p, scores, top, b, h, first_row, first_key, copied);
  }
  return update_row_max<kFindsLargest<false>>(p, scores, top, rows, factors);
}

// Rescales the accumulator of O after a row max was raised.
SCOREMOD_FUNCTION void rescale_output(SoftmaxRows& rows, const float (&factors)[kRowTiles][2]) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int n = 0; n < padded(kDimV) / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) rows.output.at[m][n][e] *= factors[m][e / 2];
}

// P = exp2(S - row max): turns modified scores into weights, adds them to the rows' sums, and drops some (dropout).
SCOREMOD_FUNCTION void exponentiate(const Arguments& p, Sums<kRowTiles, kKeys>& scores, SoftmaxRows& rows, int b, int h,
                                    int first_row, int first_key) {
  const float unit = exponent_unit(p);
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
    const RowsStay<kKeys> stay(p.call, b, h, first_row + m * 16, first_key);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // With nothing kept so far any row max gives a weight of 0.
      const float row_max = shifted(rows.row_max[m][half] == -infinity() ? 0.0f : rows.row_max[m][half]);
      float sums[kChains];
#pragma unroll
      for (int chain = 0; chain < kChains; ++chain) sums[chain] = 0.0f;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& x = scores.at[m][n][half * 2 + i];
          x = exp2_of(multiply_add(x, unit, -row_max));
          sums[(n * 2 + i) % kChains] += x;
          if (!stay.at(n, half * 2 + i)) x = 0.0f;
        }
#pragma unroll
      for (int chain = 0; chain < kChains; ++chain) rows.sum[m][half] += sums[chain];
    }
  }
}

// One step of the online softmax: turns products of q and k into weights, and rescales the accumulator.
SCOREMOD_FUNCTION void online_softmax_step(const Arguments& p, Sums<kRowTiles, kKeys>& scores, SoftmaxRows& rows,
                                           bool partial, int b, int h, int first_row, int first_key) {
  float factors[kRowTiles][2];
  if (modify_tile(p, scores, rows, factors, partial, b, h, first_row, first_key)) rescale_output(rows, factors);
  exponentiate(p, scores, rows, b, h, first_row, first_key);
}

// Adds a sink to a row's sum; returns what the output is to be multiplied by for it. `lse` becomes the row's LSE.
SCOREMOD_FUNCTION float close_row(float sink, float row_max, float& sum, float& lse) {
  if (kSink && sink == infinity()) {  // no key has a weight
    sum = 1.0f;
    lse = sink;
    return 0.0f;
  }
  const float exponent = sink * kLog2E;
  if (!kSink || exponent <= row_max) {
    if (kSink && exponent != -infinity()) sum += exp2_of(exponent - row_max);
    lse = sum == 0.0f ? -infinity() : multiply_add(row_max, kLn2, logf(sum));
    return 1.0f;
  }
  const float factor = exp2_of(row_max - exponent);
  sum = sum * factor + exp2_of(exponent - exponent);  // NaN where the sink is
  lse = sink + logf(sum);
  return factor;
}

// The threads that compute one row together: those of a CTA, but for its producers.
struct ConsumerThreads {
  static constexpr int kCount = kThreads;
  SCOREMOD_MEMBER int number() const { return threadIdx.x; }
  SCOREMOD_MEMBER void sync() const { block_barrier(); }
};

// Computes one row by plain sums over its kept keys alone, if its CTA has an output that is not finite. In an MMA a
// weight of zero does not keep out a masked key's NaN. `scratch` has room for two floats of each of the threads.
template <class Crew = ConsumerThreads>
SCOREMOD_OUT_OF_LINE void forward_row(const Arguments& p, float* scratch, int b, int h, int q,
                                      const Crew& crew = Crew()) {
  const AttentionArguments& call = p.call;
  const int thread = crew.number();
  const int kv_head = h / call.group;
  const RowsOf<QueryElement> qs = rows_of<QueryElement>(call.q, b, h);
  const RowsOf<KeyElement> ks = rows_of<KeyElement>(call.k, b, kv_head), vs = rows_of<KeyElement>(call.v, b, kv_head);
  const float of_keys = key_factor(p, kv_head), of_values = value_factor(p, kv_head);
  const int keys = keys_of(call, b);
  float* const weights = scratch;
  float* const parts = scratch + Crew::kCount;
  const auto value_at = [&](int kv) {
    float score = 0.0f;
#pragma unroll 1
    for (int d = 0; d < kDimQk; ++d)
      score = multiply_add(float_of(qs.at(q)[d * qs.dim]), float_of(ks.at(kv)[d * ks.dim]), score);
    const float of_key = kRowScales ? *key_scale_at(p, b, kv_head, kv) : of_keys;
    return value_of<true>(p, score * of_key * score_scale(p), b, h, q, kv);
  };
  float largest = -infinity();
  for (int kv = thread; kv < keys; kv += Crew::kCount) largest = f32_max(largest, value_at(kv));
  crew.sync();
  parts[thread] = largest;
  crew.sync();
#pragma unroll 1
  for (int i = 0; i < Crew::kCount; ++i) largest = f32_max(largest, parts[i]);
  const float sink = kSink ? sink_of(p, h) : -infinity(), top = f32_max(largest, sink);
  const float row_max = top == -infinity() ? 0.0f : top;
  constexpr int kDims = (kCtaDimV + Crew::kCount - 1) / Crew::kCount;
  float sum = sink == -infinity() ? 0.0f : expf(sink - row_max), output[kDims];
  for (int i = 0; i < kDims; ++i) output[i] = 0.0f;
  for (int first = 0; first < keys; first += Crew::kCount) {
    const int own = first + thread;
    const float value = own < keys ? value_at(own) : -infinity();
    crew.sync();
    // No weight is negative: -1 stands for none.
    weights[thread] = value == -infinity() ? -1.0f : expf(value - row_max);
    if (kDropout) parts[thread] = weight_stays(call, b, h, q, own) ? 1.0f : 0.0f;
    crew.sync();
#pragma unroll 1
    for (int j = 0; j < Crew::kCount && first + j < keys; ++j) {
      if (weights[j] < 0.0f) continue;
      sum += weights[j];
      if (kDropout && parts[j] == 0.0f) continue;
      const float weight = kRowScales ? weights[j] * *value_scale_at(p, b, kv_head, first + j) : weights[j];
#pragma unroll
      for (int i = 0; i < kDims; ++i) {
        const int d = thread + i * Crew::kCount;
        if (d < kCtaDimV) output[i] = multiply_add(weight, float_of(vs.at(first + j)[d * vs.dim]), output[i]);
      }
    }
  }
  const bool no_weight = top == -infinity() || (kSink && sink == infinity());
  const RowsOf<Output> to = rows_of<Output>(call.o, b, h);
  for (int i = 0; i < kDims; ++i) {
    const int d = thread + i * Crew::kCount;
    if (d < kCtaDimV)
      store_element(to.at(q) + d * to.dim, no_weight ? 0.0f : dropped(call, output[i], true) / sum * of_values);
  }
  if (thread != 0) return;
  const long long row = row_number(call, b, h, q);
  if (call.lse != nullptr) call.lse[row] = !no_weight ? top + logf(sum) : kSink ? sink : -infinity();
  if (kMaxLogit) call.max_logit[row] = largest;
}

// `largest` is in update_row_max()' units.
SCOREMOD_FUNCTION void store_row_terms(const Arguments& p, int b, int h, int q, float lse, float largest) {
  const AttentionArguments& call = p.call;
  const long long number = row_number(call, b, h, q);
  if (call.lse != nullptr) call.lse[number] = lse;
  if (kMaxLogit)
    call.max_logit[number] = kScoreIsValue && largest != -infinity() ? largest * fabsf(score_scale(p)) : largest;
}

// Writes the rows' LSEs, and what their outputs are to be multiplied by; returns whether an output is not finite.
SCOREMOD_FUNCTION bool close_softmax(const Arguments& p, SoftmaxRows& rows, float (&factors)[kRowTiles][2], int b,
                                     int h, int first_query) {
  const AttentionArguments& call = p.call;
  const int lane = threadIdx.x % 32, queries = queries_of(call, b);
  const float sink = kSink ? sink_of(p, h) : -infinity();
  bool not_finite = any_not_finite(rows.output, first_query, queries);
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = rows.sum[m][half];
      sum += exchange(sum, 1);
      sum += exchange(sum, 2);
      const int row = first_query + m * 16 + half * 8 + lane / 4;
      float lse;
      const float factor = dropped(call, close_row(sink, shifted(rows.row_max[m][half]), sum, lse), true);
      not_finite = not_finite || (row < queries && !is_finite(sum));
      // The weight of the row's largest value is at least 1.
      factors[m][half] = sum == 0.0f ? 0.0f : factor / sum;
      if (lane % 4 == 0 && row < queries) store_row_terms(p, b, h, row, lse, rows.largest[m][half]);
    }
  return not_finite;
}
