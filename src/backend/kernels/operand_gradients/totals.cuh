// attention_operand_total_I adds up the sums of one operand's gradient in ascending order; attention_sink_gradient is
// that of a learned sink, which rows' terms are enough for.
#pragma once

#include "backend/kernels/shared/row_terms.cuh"

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
