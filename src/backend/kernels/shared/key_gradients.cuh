// The parts of dk and dv that are not MMAs: weights and gradients of a part of a tile's scores, and keys by plain sums.
#pragma once

#include "backend/kernels/shared/derivative.cuh"

static_assert(kKeys == kWarps * 16, "a tile of keys is a block's");
static_assert(kQueries % kStep == 0 && kStep % kPart == 0, "a tile of queries is a number of steps");

// The steps that a CTA takes one after the other: kStep queries of one head each.
struct QuerySteps {
  TileWalk<true> walk;
  int h, end_h, part;  // of the walk's tile

  SCOREMOD_MEMBER void begin(const AttentionArguments& call, int b, int head_kv, int key_tile) {
    h = head_kv * call.group;
    end_h = h + call.group;
    part = kQueries / kStep;
    walk.begin(call, b, h, key_tile);
    if (kHeadsTakeTurns) h = end_h - 1;  // its turn is over
  }
  // With what the walk of other QuerySteps has found of the first head's first tiles.
  SCOREMOD_MEMBER void begin_with(const AttentionArguments& call, const KeyPlace& place, unsigned some, unsigned full) {
    h = place.head_kv * call.group;
    end_h = h + call.group;
    part = kQueries / kStep;
    walk.begin_with(call, place.b, place.key_tile, some, full);
  }
  SCOREMOD_MEMBER void begin_head(const AttentionArguments& call, int b, int head, int key_tile) {
    h = head;
    end_h = head + 1;
    part = kQueries / kStep;
    walk.begin(call, b, h, key_tile);
  }
  SCOREMOD_MEMBER bool next(const AttentionArguments& call, int b) {
    if (kHeadsTakeTurns) {
      if (++h < end_h) return true;
      h = end_h - call.group;
    }
    if (++part < kQueries / kStep && first_query() < call.seq_q) return true;
    part = 0;
    if (kHeadsTakeTurns) return walk.next(call, b, h);
    while (!walk.next(call, b, h)) {
      if (++h == end_h) return false;
      walk.begin(call, b, h, walk.own);
    }
    return true;
  }
  SCOREMOD_MEMBER int first_query() const { return walk.tile * kQueries + part * kStep; }
};

// One key by plain sums over the queries that keep it, as forward_row() does it for a query.
template <bool kDk, bool kDv>
SCOREMOD_OUT_OF_LINE void backward_key_row(const Arguments& p, float* scratch, int b, int head_kv, int kv) {
  const AttentionArguments& call = p.call;
  float* const weights = scratch;
  float* const gradients = scratch + kThreads;
  int* const kept = (int*)(scratch + 2 * kThreads);
  const int queries = queries_of(call, b);
  constexpr int kDims = ((kDimQk > kDimV ? kDimQk : kDimV) + kThreads - 1) / kThreads;
  float dk[kDims], dv[kDims];
  for (int i = 0; i < kDims; ++i) dk[i] = dv[i] = 0.0f;
  for (int h = head_kv * call.group; h < (head_kv + 1) * call.group; ++h) {
    const Rows qs = rows_of(call.q, b, h);
    const RowsOf<Output> d_os = rows_of<Output>(call.d_o, b, h);
    for (int first = 0; first < queries; first += kThreads) {
      const int own_q = first + threadIdx.x;
      Differentiated own{};
      if (own_q < queries) own = element_by_sums(p, b, h, own_q, kv);
      block_barrier();
      // A weight that is kept is no less than 0: -1 stands for one that is dropped.
      weights[threadIdx.x] = weight_stays(call, b, h, own_q, kv) ? dropped(call, own.weight, true) : -1.0f;
      gradients[threadIdx.x] = own.gradient;
      kept[threadIdx.x] = own.kept;
      block_barrier();
#pragma unroll 1
      for (int j = 0; j < kThreads && first + j < queries; ++j) {
        if (!kept[j]) continue;
#pragma unroll
        for (int i = 0; i < kDims; ++i) {
          const int d = threadIdx.x + i * kThreads;
          if (kDk && d < kDimQk) dk[i] = multiply_add(gradients[j], float_of(qs.at(first + j)[d * qs.dim]), dk[i]);
          if (kDv && d < kDimV && (!kDropout || !(weights[j] < 0.0f)))
            dv[i] = multiply_add(weights[j], float_of(d_os.at(first + j)[d * d_os.dim]), dv[i]);
        }
      }
    }
  }
  const Rows to_dk = rows_of(call.dk, b, head_kv), to_dv = rows_of(call.dv, b, head_kv);
  for (int i = 0; i < kDims; ++i) {
    const int d = threadIdx.x + i * kThreads;
    if (kDk && d < kDimQk) store_element(to_dk.at(kv) + d * to_dk.dim, dk[i] * sum_factor(call));
    if (kDv && d < kDimV) store_element(to_dv.at(kv) + d * to_dv.dim, dv[i]);
  }
}

// Sums of a thread's two keys over one head's queries, where operands' gradients are summed. The four threads of a key
// add theirs up when its head is done.
struct KeyGains {
  static constexpr bool kAny = kKeyTargets > 0;
  int h;  // whose sums these are
  float at[2][kMaxKeyTargets];

  SCOREMOD_MEMBER void begin_head(const Arguments&, int, int head, int) {
    h = head;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int t = 0; t < kMaxKeyTargets; ++t) at[half][t] = 0.0f;
  }
  // Before and after the columns 8 n and on, of which add() has element e, as Sums have them.
  SCOREMOD_MEMBER void begin_columns(int) {}
  SCOREMOD_MEMBER void end_columns(const Arguments&, int, int, int, int) {}
  SCOREMOD_MEMBER void add(const Arguments&, const Differentiated& element, int, int e, int, int, int) {
#pragma unroll
    for (int t = 0; t < kKeyTargets; ++t) at[e / 2][t] += element.gains[kRowTargets + t];
  }
  SCOREMOD_MEMBER void end_head(const Arguments& p, int b, int first_key) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int t = 0; t < kKeyTargets; ++t) {
        float sum = at[half][t];
        sum += exchange(sum, 1);
        sum += exchange(sum, 2);
        const int lane = threadIdx.x % 32, kv = first_key + half * 8 + lane / 4;
        if (lane % 4 == 0 && kv < p.call.seq_kv)
          key_target_sums(p, t)[((long long)b * p.call.heads_q + h) * p.call.seq_kv + kv] = sum;
      }
  }
};

// Writes the sums of the heads before this one, whose queries are over; some may have had none.
template <class Gains>
SCOREMOD_FUNCTION void move_gains_to(Gains& gains, const Arguments& p, int b, int head, int first_key) {
  while (Gains::kAny && gains.h < head) {
    gains.end_head(p, b, first_key);
    gains.begin_head(p, b, gains.h + 1, first_key);
  }
}

// An operand that TMA loads gives each thread the numbers of its scores; this is the absence of one.
struct NoCopiedKeys {
  static constexpr bool kThere = false;
  SCOREMOD_MEMBER float at(int, int) const { return 0.0f; }
};

// Turns transposed products of q and k, and of d_o and v, into weights and gradients of the scores times
// gradient_factor().
template <bool kMasked, class Gains, class Copied = NoCopiedKeys>
SCOREMOD_FUNCTION void differentiate_part(const Arguments& p, Sums<1, kPart>& scores, Sums<1, kPart>& products,
                                          const float* terms, Gains& gains, int b, int h, int first_query,
                                          int first_key, const Copied& copied = Copied{}) {
  const int lane = threadIdx.x % 32;
  const ColumnsStay<kPart> stay(p.call, b, h, first_query, first_key);
#pragma unroll
  for (int n = 0; n < kPart / 8; ++n) {
    gains.begin_columns(n);
    alignas(16) float of_two[4];  // of the thread's columns
    const float* const own = terms + 2 * (n * 8 + lane % 4 * 2);
    if (kReadsFourTerms) {
      copy_word(of_two, own);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) of_two[i] = own[i];
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int q = first_query + n * 8 + lane % 4 * 2 + e % 2, kv = first_key + e / 2 * 8 + lane / 4;
      const Differentiated element = differentiate<kMasked, Copied::kThere>(
          p, scores.at[0][n][e], products.at[0][n][e], stay.at(n, e), of_two[e % 2 * 2], of_two[e % 2 * 2 + 1], b, h, q,
          kv, copied.at(n, e));
      scores.at[0][n][e] = dropped(p.call, element.weight, stay.at(n, e));
      products.at[0][n][e] = element.gradient;
      gains.add(p, element, n, e, b, q, kv);
    }
    gains.end_columns(p, n, b, first_query, first_key);
  }
}

// Keys of the block again by plain sums, where a sum of one of them is not finite.
template <bool kDk, bool kDv>
SCOREMOD_FUNCTION void mend_keys(const Arguments& p, const Sums<1, padded(kDimQk)>& dk,
                                 const Sums<1, padded(kDimV)>& dv, float* scratch, int b, int head_kv, int key_tile) {
  const AttentionArguments& call = p.call;
  const int first_key = key_tile * kKeys + threadIdx.x / 32 * 16, keys = keys_of(call, b);
  const bool not_finite = (kDk && any_not_finite(dk, first_key, keys)) || (kDv && any_not_finite(dv, first_key, keys));
  if (!any_of_block(not_finite)) return;
  for (int i = 0; i < kKeys && key_tile * kKeys + i < keys; ++i)
    backward_key_row<kDk, kDv>(p, scratch, b, head_kv, key_tile * kKeys + i);
  block_barrier();  // nobody reads the scratch any more
}
