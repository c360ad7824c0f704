// Operand gradients by tiles of scores, as the backward's kernels have them: no scores are in memory.
// attention_operand_queries walks as attention_backward_queries does. It sums the gradients that do not vary along keys
// over its own rows, and writes those that vary along queries and keys. attention_operand_keys walks as
// attention_backward_keys does, and sums over its own keys. `sums` of each operand holds one partial sum for each
// batch, query head, and query, key or tile of queries. attention_operand_total_I adds those of one entry in ascending
// order. Table gradients go to exact sums along the walk over keys. A bias that batches or heads share has its own
// gradient kernel (operand_gradients/element_gradients.cuh).
#pragma once

#include "backend/cuda/text/exact_sum.cuh"
#include "backend/kernels/operand_gradients/element_gradients.cuh"

// Gradients of tables that are read at any indices. Each contribution belongs to the exact sum of its entry, which any
// thread may add to. Entries are numbered over all tables, whose sums lie one after the other. A thread caches the sums
// of a few entries. It flushes one to the exact sum when another entry needs its slot. Neighbouring scores often read
// the same entries, and atomics of all threads on one address would be slowest. The cached sums follow from the
// thread's scores alone, so that the same numbers are added in whatever order threads run.

constexpr int kNoEntry = -1;

SCOREMOD_FUNCTION long long* table_sums(const Arguments& p) {
  return (long long*)p.operands[/*{first_table}*/ 0 /*{}*/].sums;
}

// By all lanes of a warp: each lane's value to the exact sum of its entry, if it has one. The values of lanes that have
// the same are one number, for as many entries as a warp has as a rule.
SCOREMOD_FUNCTION void add_by_entries(long long* sums, int entry, float value) {
  constexpr unsigned kNone = (unsigned)kNoEntry;
  constexpr int kRounds = 4;
  unsigned own = (unsigned)entry;
#pragma unroll 1
  for (int round = 0; round < kRounds; ++round) {
    unsigned least = own;
    for (int distance = 1; distance < 32; distance *= 2) {
      const unsigned other = exchange_bits(least, distance);
      least = other < least ? other : least;
    }
    if (least == kNone) return;
    const float sum = sum_of_warp(own == least ? value : 0.0f);
    if (threadIdx.x % 32 == 0) add_to(sums, (long long)least, sum);
    if (own == least) own = kNone;
  }
  if (own != kNone) add_to(sums, (long long)own, value);
}

// The sums that a thread keeps, in shared memory: in banks of its own whatever the entry.
struct TableSums {
  TableSlot* own;

  // `shared` has kTableSlots of each thread.
  SCOREMOD_MEMBER void begin(TableSlot* shared) {
    own = shared + threadIdx.x;
    for (int i = 0; i < kTableSlots; ++i) own[i * kThreads] = {kNoEntry, 0.0f};
  }
  SCOREMOD_MEMBER void add(long long* sums, int entry, float gain) {
    if (gain == 0.0f) return;
    constexpr unsigned kGoldenRatio = 0x9e3779b9u;  // times 2^32: neighbouring entries get places far apart
    TableSlot& slot = own[(((unsigned)entry * kGoldenRatio) >> (32 - kTableSlotBits)) * kThreads];
    const TableSlot before = slot;
    if (before.entry == entry) gain += before.sum;
    if (before.entry != entry && before.entry != kNoEntry) add_to(sums, (long long)before.entry, before.sum);
    slot = {entry, gain};
  }
  SCOREMOD_MEMBER void add(const Arguments& p, const Gains& gains) {
#pragma unroll
    for (int t = 0; t < kTableReads; ++t)
      add(table_sums(p), gains.entries[t], gains.of_element[kFirstTableRead - kRowTargets + t]);
  }
  SCOREMOD_MEMBER void finish(const Arguments& p) {
#pragma unroll 1
    for (int i = 0; i < kTableSlots; ++i) add_by_entries(table_sums(p), own[i * kThreads].entry, own[i * kThreads].sum);
  }
};

// The gradients of one element whose operands vary along queries and keys.
SCOREMOD_FUNCTION ElementGains element_gains(const Gains& gains) {
  ElementGains own{};
#pragma unroll
  for (int t = 0; t < kElementTargets; ++t) own.of[t] = gains.of_element[kFirstElementTarget - kRowTargets + t];
  return own;
}

// A row's sums over its keys: weights, weights times their gradients, and each target's contributions from both.
struct RowSums {
  float weights[kRowTiles][2], products[kRowTiles][2];
  float of_weights[kRowTiles][2][kMaxRowTargets], of_products[kRowTiles][2][kMaxRowTargets];

  SCOREMOD_MEMBER void clear() {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        weights[m][half] = products[m][half] = 0.0f;
#pragma unroll
        for (int t = 0; t < kMaxRowTargets; ++t) of_weights[m][half][t] = of_products[m][half][t] = 0.0f;
      }
  }
};

template <bool kMasked>
SCOREMOD_FUNCTION void add_gains(const Arguments& p, RowSums& sums, TableSums& tables,
                                 const Sums<kRowTiles, kKeyStep>& scores, const Sums<kRowTiles, kKeyStep>& products,
                                 const float (&terms)[kRowTiles][2][2], int b, int h, int first_query, int first_key) {
  const AttentionArguments& call = p.call;
  const int lane = threadIdx.x % 32;
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
        if (kElementTargets > 0) store_element_gains(p, element_gains(gains), b, h, q, kv);
        if (!gains.kept) continue;
        tables.add(p, gains);
        sums.weights[m][half] += gains.weight;
        sums.products[m][half] = multiply_add(gains.weight, product, sums.products[m][half]);
#pragma unroll
        for (int t = 0; t < kRowTargets; ++t) {
          sums.of_weights[m][half][t] += gains.of_weight[t];
          sums.of_products[m][half][t] += gains.of_product[t];
        }
      }
  }
}

// Writes the gradients of a row's targets: the sum of products less the row's delta times the sum of weights. The delta
// is recomputed from these float32 sums, unless the call supplies it by o and d_o.
SCOREMOD_FUNCTION void write_row_sums(const Arguments& p, RowSums& sums, const float (&terms)[kRowTiles][2][2], int b,
                                      int h, int query_tile, float* parts) {
  const AttentionArguments& call = p.call;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const long long head = (long long)b * call.heads_q + h;
  const float sink = kSink ? sink_of(p, h) : -infinity();
  float totals[kMaxRowTargets];
#pragma unroll
  for (int t = 0; t < kMaxRowTargets; ++t) totals[t] = 0.0f;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = query_tile * kQueries + warp * kWarpRows + m * 16 + half * 8 + lane / 4;
      const auto of_row = [](float x) {
        x += exchange(x, 1);
        return x + exchange(x, 2);
      };
      float weight = of_row(sums.weights[m][half]), delta = of_row(sums.products[m][half]);
      // The LSE's rounding is a factor of all weights of a row, the sink's among them: it is no part of their mean.
      if (kSink) weight += weight_of_sink(sink, terms[m][half][0]);
      if (weight != 0.0f) delta /= weight;
      if (kGivenDeltas) delta = terms[m][half][1];
#pragma unroll
      for (int t = 0; t < kRowTargets; ++t) {
        const float of_weight = of_row(sums.of_weights[m][half][t]), of_product = of_row(sums.of_products[m][half][t]);
        // With no weight there is nothing to take away, whatever the delta.
        const float gain = of_weight == 0.0f ? of_product : multiply_add(-delta, of_weight, of_product);
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

SCOREMOD_KERNEL(kThreads, kBlocks) attention_operand_queries(SCOREMOD_ARGUMENT p) {
  SCOREMOD_SHARED(shared);
  constexpr OperandQueriesStorage kAt{kDimQk, kDimV, kQueries, kKeyStep, kElementBytes, kThreads, kTableReads > 0};
  constexpr int kStepElements = kAt.stage_bytes / kElementBytes;
  TileElement* const q_tile = (TileElement*)(shared + kAt.q);
  TileElement* const d_o_tile = (TileElement*)(shared + kAt.d_o);
  TileElement* const step_tiles = (TileElement*)(shared + kAt.k);  // k, then v
  const AttentionArguments& call = p.call;
  const QueryPlace place = query_place(call, blockIdx.x);
  const int b = place.b, h = place.h, query_tile = place.query_tile;
  const int warp_row = threadIdx.x / 32 * kWarpRows, first_query = query_tile * kQueries + warp_row;
  const int queries = queries_of(call, b), keys = keys_of(call, b);
  const Rows ks = rows_of(call.k, b, h / call.group), vs = rows_of(call.v, b, h / call.group);
  clear_empty_tiles(p, b, h, query_tile);

  RowSums sums;
  sums.clear();
  TableSums tables;
  if (kTableReads > 0) tables.begin((TableSlot*)(shared + kAt.slots));
  float terms[kRowTiles][2][2];
  read_row_terms(terms, call, b, h, first_query);
  KeySteps steps;
  steps.begin(call, b, h, query_tile);
  const auto load_step = [&](int buffer) {
    TileElement* const k_tile = step_tiles + buffer * kStepElements;
    load_tile<kKeyStep, kDimQk>(k_tile, ks, steps.first_key(), keys);
    load_tile<kKeyStep, kDimV>(k_tile + kKeyStep * row_length(kDimQk), vs, steps.first_key(), keys);
  };
  bool more = steps.next(call, b, h);
  if (more) {
    load_tile<kQueries, kDimQk>(q_tile, rows_of(call.q, b, h), query_tile * kQueries, queries);
    load_tile<kQueries, kDimV>(d_o_tile, rows_of<Output>(call.d_o, b, h), query_tile * kQueries, queries);
    load_step(0);
  }
  for (int buffer = 0; more; buffer ^= 1) {
    const int first_key = steps.first_key();
    const bool partial = steps.walk.partial;
    wait_for_copies();
    block_barrier();  // the step is there, and nobody reads the last one any more
    more = steps.next(call, b, h);
    if (more) load_step(buffer ^ 1);
    const TileElement* const k_tile = step_tiles + buffer * kStepElements;
    Sums<kRowTiles, kKeyStep> scores, products;
    scores.clear();
    products.clear();
    add_product_of_rows<kDimQk>(scores, q_tile + warp_row * row_length(kDimQk), k_tile);
    add_product_of_rows<kDimV>(products, d_o_tile + warp_row * row_length(kDimV),
                               k_tile + kKeyStep * row_length(kDimQk));
    if (kAlwaysMasked || partial)
      add_gains<true>(p, sums, tables, scores, products, terms, b, h, first_query, first_key);
    else
      add_gains<false>(p, sums, tables, scores, products, terms, b, h, first_query, first_key);
  }
  if (kTableReads > 0) tables.finish(p);
  block_barrier();  // shared memory is free
  if (kRowTargets > 0) write_row_sums(p, sums, terms, b, h, query_tile, (float*)shared);
}

// One CTA for kKeys keys of one batch and query head.
SCOREMOD_KERNEL(kThreads, kBlocks) attention_operand_keys(SCOREMOD_ARGUMENT p) {
  SCOREMOD_SHARED(shared);
  constexpr PortableKeysStorage kAt{kDimQk, kDimV, kKeys, kStep, kElementBytes};
  constexpr int kStepElements = kAt.stage_bytes / kElementBytes;
  TileElement* const k_tile = (TileElement*)(shared + kAt.k);
  TileElement* const v_tile = (TileElement*)(shared + kAt.v);
  TileElement* const step_tiles = (TileElement*)(shared + kAt.q);  // q, then d_o
  float* const step_terms = (float*)(shared + kAt.terms);
  const AttentionArguments& call = p.call;
  const int lane = threadIdx.x % 32, key_tile = blockIdx.x % call.key_tiles;
  const int head = blockIdx.x / call.key_tiles, b = head / call.heads_q, h = head % call.heads_q;
  const int head_kv = h / call.group;
  const int warp_row = threadIdx.x / 32 * 16, first_key = key_tile * kKeys + warp_row;
  const int queries = queries_of(call, b), keys = keys_of(call, b);
  float sums[2][kMaxKeyTargets];
#pragma unroll
  for (int t = 0; t < kMaxKeyTargets; ++t) sums[0][t] = sums[1][t] = 0.0f;
  QuerySteps steps;
  steps.begin_head(call, b, h, key_tile);
  const auto load_step = [&](int buffer) {
    TileElement* const q_tile = step_tiles + buffer * kStepElements;
    load_tile<kStep, kDimQk>(q_tile, rows_of(call.q, b, h), steps.first_query(), queries);
    load_tile<kStep, kDimV>(q_tile + kStep * row_length(kDimQk), rows_of<Output>(call.d_o, b, h), steps.first_query(),
                            queries);
    for (int i = threadIdx.x; i < kStep; i += kThreads) {
      const int q = steps.first_query() + i;
      const bool there = q < call.seq_q;
      copy_ahead<8>(step_terms + (buffer * kStep + i) * 2, row_terms(call, b, h, there ? q : 0), there ? 8 : 0);
    }
  };
  bool more = steps.next(call, b);
  if (more) {
    load_tile<kKeys, kDimQk>(k_tile, rows_of(call.k, b, head_kv), key_tile * kKeys, keys);
    load_tile<kKeys, kDimV>(v_tile, rows_of(call.v, b, head_kv), key_tile * kKeys, keys);
    load_step(0);
  }
  for (int buffer = 0; more; buffer ^= 1) {
    const int first_query = steps.first_query();
    const bool partial = steps.walk.partial || first_query + kStep > call.seq_q;
    wait_for_copies();
    block_barrier();  // the step is there, and nobody reads the last one any more
    more = steps.next(call, b);
    if (more) load_step(buffer ^ 1);
#pragma unroll 1
    for (int part = 0; part < kStep; part += kPart) {
      const TileElement* const q_tile = step_tiles + buffer * kStepElements + part * row_length(kDimQk);
      const TileElement* const d_o_tile =
          step_tiles + buffer * kStepElements + kStep * row_length(kDimQk) + part * row_length(kDimV);
      const float* const terms = step_terms + (buffer * kStep + part) * 2;
      Sums<1, kPart> scores, products;
      scores.clear();
      products.clear();
      add_product_of_rows<kDimQk>(scores, k_tile + warp_row * row_length(kDimQk), q_tile);
      add_product_of_rows<kDimV>(products, v_tile + warp_row * row_length(kDimV), d_o_tile);
      const ColumnsStay<kPart> stay(call, b, h, first_query + part, first_key);
#pragma unroll
      for (int n = 0; n < kPart / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int query = n * 8 + lane % 4 * 2 + e % 2, q = first_query + part + query;
          const int kv = first_key + e / 2 * 8 + lane / 4;
          const float score = scores.at[0][n][e] * call.scale;
          const float product = dropped(call, products.at[0][n][e], stay.at(n, e));
          const Gains gains =
              kAlwaysMasked || partial
                  ? gains_of<true>(p, score, product, terms[2 * query], terms[2 * query + 1], b, h, q, kv)
                  : gains_of<false>(p, score, product, terms[2 * query], terms[2 * query + 1], b, h, q, kv);
          if (!gains.kept) continue;
#pragma unroll
          for (int t = 0; t < kKeyTargets; ++t) sums[e / 2][t] += gains.of_element[t];
        }
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int t = 0; t < kKeyTargets; ++t) {
      float sum = sums[half][t];
      sum += exchange(sum, 1);
      sum += exchange(sum, 2);
      const int kv = first_key + half * 8 + lane / 4;
      if (lane % 4 == 0 && kv < call.seq_kv)
        key_target_sums(p, t)[((long long)b * call.heads_q + h) * call.seq_kv + kv] = sum;
    }
}
