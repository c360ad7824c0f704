// Of few queries' rows, what some of the keys make of them: how it is left and merged, in ascending order, and o and
// lse that are made of all. attention_merge_parts: those of each row, from what the blocks with its shares of the keys
// have left; a single share needs no such kernel.
#pragma once

#include "backend/kernels/device/attention_packed_rows.cuh"
#include "backend/kernels/device/attention_softmax.cuh"

// A part is what some keys make of kQueries rows: of each the output so far, as long as kDimV, and from there its
// reference, its sum and its largest value. Eight rows at one column lie in different banks.
constexpr int kPartRow = padded(kDimV) + 8, kPartFloats = kQueries * kPartRow;
static_assert(kTeams * kPartFloats >= 2 * kThreads, "forward_row() has room where parts were");

// Of a batch's head of keys and a tile of rows: the first of call.splits.
SCOREMOD_FUNCTION float* parts_of(const AttentionArguments& call, int b, int key_head, int row_tile) {
  const long long tile = ((long long)b * key_heads_of(call) + key_head) * call.query_tiles + row_tile;
  return call.parts + tile * call.splits * kPartFloats;
}

// Of the warp's rows, those of the block's tile from `to` on.
SCOREMOD_FUNCTION void store_part(const SoftmaxRows& rows, float* to) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* const row = to + (m * 16 + half * 8 + lane / 4) * kPartRow;
#pragma unroll
      for (int n = 0; n < padded(kDimV) / 8; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) row[n * 8 + lane % 4 * 2 + i] = rows.output.at[m][n][half * 2 + i];
      float sum = rows.sum[m][half];
      sum += exchange(sum, 1);
      sum += exchange(sum, 2);
      if (lane % 4 != 0) continue;
      row[padded(kDimV)] = rows.reference[m][half];
      row[padded(kDimV) + 1] = sum;
      row[padded(kDimV) + 2] = rows.largest[m][half];
    }
}

// One row of several parts that a warp adds up: a thread has every 32nd output.
struct MergedRow {
  static constexpr int kOutputs = (kDimV + 31) / 32;
  float reference, sum, largest, output[kOutputs];

  // `row` is of the first part, and the same of the next is kPartFloats from there.
  SCOREMOD_MEMBER void merge(const float* row, int parts) {
    const int lane = threadIdx.x % 32;
    reference = largest = -infinity();
    for (int i = 0; i < parts; ++i) {
      const float* const terms = row + (long long)i * kPartFloats + padded(kDimV);
      reference = fmaxf(reference, terms[0]);
      largest = fmaxf(largest, terms[2]);
    }
    const float base = reference == -infinity() ? 0.0f : reference;
    sum = 0.0f;
#pragma unroll
    for (int j = 0; j < kOutputs; ++j) output[j] = 0.0f;
    for (int i = 0; i < parts; ++i) {
      const float* const part = row + (long long)i * kPartFloats;
      const float factor = exp2_of(part[padded(kDimV)] - base);
      sum = multiply_add(part[padded(kDimV) + 1], factor, sum);
#pragma unroll
      for (int j = 0; j < kOutputs; ++j)
        if (lane + 32 * j < kDimV) output[j] = multiply_add(part[lane + 32 * j], factor, output[j]);
    }
  }
  SCOREMOD_MEMBER void store(float* row) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < kOutputs; ++j)
      if (lane + 32 * j < kDimV) row[lane + 32 * j] = output[j];
    if (lane < 3) row[padded(kDimV) + lane] = lane == 0 ? reference : lane == 1 ? sum : largest;
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
  const float factor =
      dropped(call, close_row(kSink ? sink_of(p, h) : -infinity(), row.reference, sum, lse), true) / sum;
  const RowsOf<Output> to = rows_of<Output>(call.o, b, h);
  bool not_finite = !is_finite(sum);
#pragma unroll
  for (int j = 0; j < MergedRow::kOutputs; ++j) {
    const int dim = lane + 32 * j;
    if (dim >= kDimV) continue;
    not_finite = not_finite || !is_finite(row.output[j]);
    store_element(to.at(q) + dim * to.dim, sum == 0.0f ? 0.0f : row.output[j] * factor);
  }
  if (lane == 0) store_row_terms(call, b, h, q, lse, row.largest);
  return not_finite;
}

// By the threads that have a block's rows, when nobody reads its tiles any more: from what its teams have of them, o
// and lse, or a part. `scratch` has room for a part of each team. The warp's rows are those of the tile from `warp_row`
// on.
SCOREMOD_FUNCTION void end_rows(const Arguments& p, const SoftmaxRows& rows, const KeyShare& own, int team,
                                int warp_row, float* scratch) {
  const AttentionArguments& call = p.call;
  const int warp = threadIdx.x / 32, first_row = own.first_row(), count = rows_of_head(call) - first_row;
  if (warp_row < count) store_part(rows, scratch + team * kPartFloats + warp_row * kPartRow);
  block_barrier();
  float* const to = parts_of(call, own.b, own.key_head, own.row_tile) + (long long)own.split * kPartFloats;
  bool not_finite = false;
  for (int row = warp; row < kQueries && row < count; row += kWarps) {
    const RowOwner of = owner_of(call, own.h, first_row + row);
    MergedRow merged;
    merged.merge(scratch + row * kPartRow, kTeams);
    if (call.splits > 1)
      merged.store(to + row * kPartRow);
    else if (is_there(call, own.b, of.q))
      not_finite = store_merged(p, merged, own.b, of.h, of.q) || not_finite;
  }
  if (!any_of_block(not_finite)) return;
  for (int row = 0; row < kQueries && row < count; ++row) {
    const RowOwner of = owner_of(call, own.h, first_row + row);
    if (!is_there(call, own.b, of.q)) continue;
    forward_row(p, scratch, own.b, of.h, of.q);
  }
}

// One warp for each row.
SCOREMOD_KERNEL(kThreads, 1) attention_merge_parts(SCOREMOD_ARGUMENT p) {
  SCOREMOD_SHARED(shared);
  const AttentionArguments& call = p.call;
  const long long rows = (long long)call.batch * call.heads_q * call.seq_q, first = (long long)blockIdx.x * kWarps;
  const auto owner = [&](long long number, int& b, int& h, int& q) {
    q = (int)(number % call.seq_q);
    h = (int)(number / call.seq_q % call.heads_q);
    b = (int)(number / call.seq_q / call.heads_q);
  };
  const long long number = first + threadIdx.x / 32;
  int b, h, q;
  bool not_finite = false;
  if (number < rows) {
    owner(number, b, h, q);
  }
  if (number < rows && is_there(call, b, q)) {
    const int key_head = h / call.group, row = q * call.group + h % call.group;
    MergedRow merged;
    merged.merge(parts_of(call, b, key_head, row / kQueries) + row % kQueries * kPartRow, call.splits);
    not_finite = store_merged(p, merged, b, h, q);
  }
  if (!any_of_block(not_finite)) return;
  for (int i = 0; i < kWarps && first + i < rows; ++i) {
    owner(first + i, b, h, q);
    if (!is_there(call, b, q)) continue;
    forward_row(p, (float*)shared, b, h, q);
  }
}
