// The gradient of a relative-position table, whose indices follow from kv_idx - q_idx. It adds the sums of
// operand_gradients/diagonals.cuh to exact sums of the table's entries (operand_gradients/exact_totals.cuh).
#pragma once

#include "backend/cuda/exact_sum.cuh"
#include "backend/kernels/operand_gradients/diagonals.cuh"

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
