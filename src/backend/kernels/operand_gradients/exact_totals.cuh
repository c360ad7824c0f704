// Kernels for exact sums of a gradient's entries. attention_operand_clear_I zeroes them before anybody adds to them,
// and attention_operand_total_I rounds them to the gradient. A gradient that nothing contributes to has no sums, and is
// 0.
#pragma once

#include "backend/cuda/exact_sum.cuh"
#include "backend/kernels/operand_gradients/targets.cuh"

/*{exact_clears}*/
SCOREMOD_KERNEL(128, 1) /*{name}*/ attention_operand_clear_0 /*{}*/ (SCOREMOD_ARGUMENT p) {
  const OperandArgument& operand = p.operands[/*{operand}*/ 0 /*{}*/];
  const long long word = (long long)blockIdx.x * 128 + threadIdx.x;
  if (word < entries_of(operand, /*{rank}*/ 1 /*{}*/) * kSumWords) ((long long*)operand.sums)[word] = 0;
}
/*{}*/

/*{exact_totals}*/
SCOREMOD_KERNEL(128, 1) /*{name}*/ attention_operand_total_0 /*{}*/ (SCOREMOD_ARGUMENT p) {
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
