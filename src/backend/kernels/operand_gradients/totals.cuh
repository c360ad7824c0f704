// attention_operand_total_I adds up the sums of one operand's gradient in ascending order; attention_sink_gradient is
// that of a learned sink, which rows' terms are enough for.
#pragma once

#include "backend/cuda/text/exact_sum.cuh"
#include "backend/kernels/shared/query_gradients.cuh"

SCOREMOD_FUNCTION void store_sink_gradient(const Arguments& p, float gradient, int h) {
  /*{sink_store}*/
  if (p.operands[/*{operand}*/ 0 /*{}*/].gradient != nullptr)
    /*{store}*/ store_f32 /*{}*/ (p.operands[/*{operand}*/ 0 /*{}*/].gradient, /*{offset}*/ 0 /*{}*/, gradient);
  /*{}*/
}

/*{operand_totals}*/
// The entries of one gradient, from the sums of each batch, head and position that share it. A warp adds those of one
// entry where the positions are tiles; a thread does where they are entries of their own.
SCOREMOD_KERNEL(128, 1) /*{name}*/ attention_operand_total_0 /*{}*/ (SCOREMOD_ARGUMENT p) {
  const AttentionArguments& call = p.call;
  const OperandArgument& operand = p.operands[/*{operand}*/ 0 /*{}*/];
  constexpr bool kByTiles = /*{by_tiles}*/ true /*{}*/, kAlongKeys = /*{along_keys}*/ false /*{}*/;
  if (operand.gradient == nullptr) return;
  const bool by_batch = /*{by_batch}*/ true /*{}*/, by_head = /*{by_head}*/ true /*{}*/;
  const int positions = kByTiles ? totals_of_head(call) : kAlongKeys ? call.seq_kv : call.seq_q;
  const int own_positions = kByTiles ? 1 : positions, summed_positions = kByTiles ? positions : 1;
  const int heads = by_head ? call.heads_q : 1, batches = by_batch ? call.batch : 1;
  const int summed_heads = by_head ? 1 : call.heads_q, summed_batches = by_batch ? 1 : call.batch;
  const int lane = kByTiles ? threadIdx.x % 32 : 0, lanes = kByTiles ? 32 : 1;
  const long long number = ((long long)blockIdx.x * 128 + threadIdx.x) / lanes;
  if (number >= (long long)batches * heads * own_positions) return;
  const int at = (int)(number % own_positions), own_h = (int)(number / own_positions % heads);
  const int own_b = (int)(number / own_positions / heads);
  float sum = 0.0f;
  for (int i = lane; i < summed_batches * summed_heads * summed_positions; i += lanes) {
    const int position = kByTiles ? i % summed_positions : at, summed_h = i / summed_positions % summed_heads;
    const long long summed_b = i / summed_positions / summed_heads;
    sum += operand.sums[((own_b + summed_b) * call.heads_q + own_h + summed_h) * positions + position];
  }
  if (kByTiles) sum = sum_of_warp(sum);
  if (lane != 0) return;
  const int b = own_b, h = own_h, q = at, kv = at;
  /*{store}*/ store_f32 /*{}*/ (operand.gradient, /*{offset}*/ b + h + q + kv /*{}*/, sum);
}
/*{}*/

// The gradient of a learned sink, one CTA for each head: the sum over its rows of -p (o . d_o), where p is the sink's
// weight.
SCOREMOD_KERNEL(128, 1) attention_sink_gradient(SCOREMOD_ARGUMENT p) {
  SCOREMOD_SHARED(shared);
  float* const parts = (float*)shared;
  const AttentionArguments& call = p.call;
  const int h = blockIdx.x;
  const float sink = kSink ? sink_of(p, h) : -infinity();
  const long long rows = (long long)call.batch * call.seq_q;
  float sum = 0.0f;
  if (sink != -infinity()) {
    for (long long i = threadIdx.x; i < rows; i += 128) {
      const float* const terms = row_terms(call, (int)(i / call.seq_q), h, (int)(i % call.seq_q));
      sum = multiply_add(-weight_of_sink(sink, terms[0]), terms[1], sum);
    }
  }
  sum = sum_of_warp(sum);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  team_barrier<4>(0);  // in a text of Hopper kernels block_barrier() waits for more threads
  if (threadIdx.x == 0) store_sink_gradient(p, parts[0] + parts[1] + parts[2] + parts[3], h);
}

// Kernels for exact sums of a gradient's entries. attention_operand_clear_I zeroes them before anybody adds to them,
// and attention_operand_total_I rounds them to the gradient. A gradient that nothing contributes to has no sums, and is
// 0.

/*{exact_clears}*/
SCOREMOD_KERNEL(128, 1) /*{name}*/ attention_operand_clear_0 /*{}*/ (SCOREMOD_ARGUMENT p) {
  const OperandArgument& operand = p.operands[/*{operand}*/ 0 /*{}*/];
  const long long word = (long long)blockIdx.x * 128 + threadIdx.x;
  if (word < entries_of(operand, /*{rank}*/ 1 /*{}*/) * kSumWords) ((long long*)operand.sums)[word] = 0;
}
/*{}*/

/*{exact_totals}*/
SCOREMOD_KERNEL(128, 1) /*{name}*/ attention_operand_total_1 /*{}*/ (SCOREMOD_ARGUMENT p) {
  const OperandArgument& operand = p.operands[/*{operand}*/ 0 /*{}*/];
  const long long entry = (long long)blockIdx.x * 128 + threadIdx.x;
  constexpr int kRank = /*{rank}*/ 1 /*{}*/;
  if (entry >= entries_of(operand, kRank) || operand.gradient == nullptr) return;
  long long left = entry, offset = 0;
  for (int d = kRank - 1; d >= 0; --d) {
    offset += left % operand.extent[d] * operand.stride[d];
    left /= operand.extent[d];
  }
  const float gradient = /*{value}*/ sum_at((const long long*)operand.sums, entry) /*{}*/;
  /*{store}*/ store_f32 /*{}*/ (operand.gradient, offset, gradient);
}
/*{}*/

// The gradient of a relative-position table, whose indices follow from kv_idx - q_idx. It adds the sums of
// DiagonalGains (shared/query_gradients.cuh) to exact sums of the table's entries.

// By all lanes of a warp: to exact sums, once for all of them where they have one entry.
SCOREMOD_FUNCTION void add_of_warp(long long* sums, int entry, float value, bool there) {
  bool same = there;
  for (int distance = 1; distance < 32; distance *= 2)
    same = exchange_bits((unsigned)entry, distance) == (unsigned)entry && same;
  if (ballot(same) == 0xffffffffu) {
    value = sum_of_warp(value);
    there = threadIdx.x % 32 == 0;
  }
  if (there && value != 0.0f) add_to(sums, entry, value);
}

/*{diagonal_totals}*/
// One thread for each difference of each head, whole warps for each head: what all groups of all batches have of it.
SCOREMOD_KERNEL(128, 1) /*{add}*/ attention_operand_diagonals_0 /*{}*/ (SCOREMOD_ARGUMENT p) {
  const AttentionArguments& call = p.call;
  const OperandArgument& operand = p.operands[/*{operand}*/ 0 /*{}*/];
  constexpr bool kByBatch = /*{by_batch}*/ true /*{}*/;
  const int differences = call.seq_q + call.seq_kv - 1, pitch = (differences + 31) / 32 * 32;
  const long long number = (long long)blockIdx.x * 128 + threadIdx.x;
  const int h = (int)(number / pitch), at = (int)(number % pitch);
  if (h >= call.heads_q || operand.gradient == nullptr) return;
  const int difference = at - (call.seq_q - 1);
  const int q = difference < 0 ? -difference : 0, kv = difference > 0 ? difference : 0;
  const int offset_b = index_offset(call.offset_b), offset_h = index_offset(call.offset_h),
            offset_q = index_offset(call.offset_q), offset_kv = index_offset(call.offset_kv);
  const int groups = diagonal_groups(call);
  float sum = 0.0f;
  for (int b = 0; b < call.batch; ++b) {
    for (int group = 0; group < groups; ++group) {
      const int place = diagonal_place(difference, group);
      if (place >= 0 && place < diagonal_pitch(call)) sum += diagonal_sums(p, b, h, group)[place];
    }
    if (!kByBatch && b + 1 < call.batch) continue;
    /*{statements}*/ const int n1 = kv - q + b + h + offset_b + offset_h + offset_q + offset_kv; /*{}*/
    add_of_warp((long long*)operand.sums, /*{entry}*/ n1 /*{}*/, sum, at < differences);
    sum = 0.0f;
  }
}
/*{}*/
