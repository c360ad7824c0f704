// attention_backward_keys: dk and dv, one block of threads for kWarps * 16 keys of one batch and key head, which walks
// over the query heads of its group and over their queries in ascending order. Products are transposed, keys along
// rows, so that weights and gradients are the left factors of the products with d_o and q as they stand. Where the sums
// of both would not fit into the registers, two kernels write one each.
#pragma once

#include "backend/kernels/device/attention_backward_rows.cuh"

static_assert(kKeys == kWarps * 16, "a tile of keys is a block's");
static_assert(kQueries % kStep == 0 && kStep % kPart == 0, "a tile of queries is a number of steps");

// One key by plain sums over the queries that keep it, as forward_row() does it for a query.
template <bool kDk, bool kDv>
SCOREMOD_OUT_OF_LINE void backward_key_row(const Arguments& p, float* scratch, int b, int head_kv, int kv) {
  const AttentionArguments& call = p.call;
  float* const weights = scratch;
  float* const gradients = scratch + kThreads;
  int* const kept = (int*)(scratch + 2 * kThreads);
  constexpr int kDims = ((kDimQk > kDimV ? kDimQk : kDimV) + kThreads - 1) / kThreads;
  float dk[kDims], dv[kDims];
  for (int i = 0; i < kDims; ++i) dk[i] = dv[i] = 0.0f;
  for (int h = head_kv * call.group; h < (head_kv + 1) * call.group; ++h) {
    const Rows qs = rows_of(call.q, b, h), d_os = rows_of(call.d_o, b, h);
    for (int first = 0; first < call.seq_q; first += kThreads) {
      Differentiated own{};
      if (first + (int)threadIdx.x < call.seq_q) own = element_by_sums(p, b, h, first + threadIdx.x, kv);
      block_barrier();
      weights[threadIdx.x] = own.weight;
      gradients[threadIdx.x] = own.gradient;
      kept[threadIdx.x] = own.kept;
      block_barrier();
      for (int j = 0; j < kThreads && first + j < call.seq_q; ++j) {
        if (!kept[j]) continue;
#pragma unroll
        for (int i = 0; i < kDims; ++i) {
          const int d = threadIdx.x + i * kThreads;
          if (kDk && d < kDimQk)
            dk[i] = multiply_add(gradients[j], float_of(qs.data[(first + j) * qs.row + d * qs.dim]), dk[i]);
          if (kDv && d < kDimV)
            dv[i] = multiply_add(weights[j], float_of(d_os.data[(first + j) * d_os.row + d * d_os.dim]), dv[i]);
        }
      }
    }
  }
  const Rows to_dk = rows_of(call.dk, b, head_kv), to_dv = rows_of(call.dv, b, head_kv);
  for (int i = 0; i < kDims; ++i) {
    const int d = threadIdx.x + i * kThreads;
    if (kDk && d < kDimQk) to_dk.data[kv * to_dk.row + d * to_dk.dim] = half_of(dk[i]);
    if (kDv && d < kDimV) to_dv.data[kv * to_dv.row + d * to_dv.dim] = half_of(dv[i]);
  }
}

// What a block takes one after the other: kStep queries of one head.
struct QuerySteps {
  TileWalk<true> walk;
  int h, end_h, part;  // of the walk's tile

  SCOREMOD_MEMBER void begin(const AttentionArguments& call, int b, int head_kv, int key_tile) {
    h = head_kv * call.group;
    end_h = h + call.group;
    part = kQueries / kStep;
    walk.begin(call, b, h, key_tile);
  }
  SCOREMOD_MEMBER bool next(const AttentionArguments& call, int b) {
    if (++part < kQueries / kStep && first_query() < call.seq_q) return true;
    part = 0;
    while (!walk.next(call, b, h)) {
      if (++h == end_h) return false;
      walk.begin(call, b, h, walk.own);
    }
    return true;
  }
  SCOREMOD_MEMBER int first_query() const { return walk.tile * kQueries + part * kStep; }
};

// Turns transposed products of q and k, and of d_o and v, into weights and gradients of the scores times the scale.
template <bool kMasked>
SCOREMOD_FUNCTION void differentiate_part(const Arguments& p, Sums<1, kPart>& scores, Sums<1, kPart>& products,
                                          const float* terms, int b, int h, int first_query, int first_key) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < kPart / 8; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int query = n * 8 + lane % 4 * 2 + e % 2;
      const Differentiated element =
          differentiate<kMasked>(p, scores.at[0][n][e] * p.call.scale, products.at[0][n][e], terms[2 * query],
                                 terms[2 * query + 1], b, h, first_query + query, first_key + e / 2 * 8 + lane / 4);
      scores.at[0][n][e] = element.weight;
      products.at[0][n][e] = element.gradient;
    }
}

template <bool kDk, bool kDv>
SCOREMOD_FUNCTION void write_keys(const Arguments& p) {
  SCOREMOD_SHARED(shared);
  constexpr int kStepHalves = kStep * (row_length(kDimQk) + row_length(kDimV));
  Half* const k_tile = (Half*)shared;
  Half* const v_tile = k_tile + kKeys * row_length(kDimQk);
  Half* const step_tiles = v_tile + kKeys * row_length(kDimV);  // two times q, then d_o
  float* const step_terms = (float*)(step_tiles + 2 * kStepHalves);
  const AttentionArguments& call = p.call;
  const int heads_kv = call.heads_q / call.group;
  const int key_tile = blockIdx.x % call.key_tiles;
  const int head = blockIdx.x / call.key_tiles, b = head / heads_kv, head_kv = head % heads_kv;
  const int warp_row = threadIdx.x / 32 * 16, first_key = key_tile * kKeys + warp_row;

  Sums<1, padded(kDimQk)> dk;
  Sums<1, padded(kDimV)> dv;
  dk.clear();
  dv.clear();
  QuerySteps steps;
  steps.begin(call, b, head_kv, key_tile);
  const auto load_step = [&](int buffer) {
    Half* const q_tile = step_tiles + buffer * kStepHalves;
    load_tile<kStep, kDimQk>(q_tile, rows_of(call.q, b, steps.h), steps.first_query(), call.seq_q);
    load_tile<kStep, kDimV>(q_tile + kStep * row_length(kDimQk), rows_of(call.d_o, b, steps.h), steps.first_query(),
                            call.seq_q);
    for (int i = threadIdx.x; i < kStep; i += kThreads) {
      const int q = steps.first_query() + i;
      const bool there = q < call.seq_q;
      copy_ahead<8>(step_terms + (buffer * kStep + i) * 2, row_terms(call, b, steps.h, there ? q : 0), there ? 8 : 0);
    }
  };
  bool more = steps.next(call, b);
  if (more) {
    load_tile<kKeys, kDimQk>(k_tile, rows_of(call.k, b, head_kv), key_tile * kKeys, call.seq_kv);
    load_tile<kKeys, kDimV>(v_tile, rows_of(call.v, b, head_kv), key_tile * kKeys, call.seq_kv);
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
      const Half* const q_tile = step_tiles + buffer * kStepHalves + part * row_length(kDimQk);
      const Half* const d_o_tile =
          step_tiles + buffer * kStepHalves + kStep * row_length(kDimQk) + part * row_length(kDimV);
      const float* const terms = step_terms + (buffer * kStep + part) * 2;
      Sums<1, kPart> scores, products;
      scores.clear();
      products.clear();
      add_product_of_rows<kDimQk>(scores, k_tile + warp_row * row_length(kDimQk), q_tile);
      if (kDk) add_product_of_rows<kDimV>(products, v_tile + warp_row * row_length(kDimV), d_o_tile);
      if (partial)
        differentiate_part<true>(p, scores, products, terms, b, h, first_query + part, first_key);
      else
        differentiate_part<false>(p, scores, products, terms, b, h, first_query + part, first_key);
      if (kDv) add_product<kDimV>(dv, scores, d_o_tile);
      if (kDk) add_product<kDimQk>(dk, products, q_tile);
    }
  }
  const float ones[1][2] = {{1.0f, 1.0f}};
  bool not_finite = false;
  if (kDk) {
    store_rows<kDimQk>(dk, ones, rows_of(call.dk, b, head_kv), first_key, call.seq_kv);
    not_finite = any_not_finite(dk, first_key, call.seq_kv);
  }
  if (kDv) {
    store_rows<kDimV>(dv, ones, rows_of(call.dv, b, head_kv), first_key, call.seq_kv);
    not_finite = any_not_finite(dv, first_key, call.seq_kv) || not_finite;
  }
  if (!any_of_block(not_finite)) return;
  for (int i = 0; i < kKeys && key_tile * kKeys + i < call.seq_kv; ++i)
    backward_key_row<kDk, kDv>(p, (float*)shared, b, head_kv, key_tile * kKeys + i);
}

SCOREMOD_KERNEL(kThreads, kBlocks) attention_backward_keys(SCOREMOD_ARGUMENT p) { write_keys<true, !kSplitKeys>(p); }
SCOREMOD_KERNEL(kThreads, kBlocks) attention_backward_values(SCOREMOD_ARGUMENT p) {
  if (kSplitKeys) write_keys<false, kSplitKeys>(p);
}
