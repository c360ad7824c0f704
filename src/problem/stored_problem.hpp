#pragma once

#include "scoremod/problem.hpp"

namespace scoremod::problem {

/// Attention on the stored FP8 numbers, without their scales, for backends without FP8. It is a problem of bf16, which
/// has every FP8 number. Its program multiplies the score by 'descale_q' and 'descale_k', which it reads as operands.
/// Its operands, LSE, largest scores and operand gradients are the problem's. Its tensors lie densely.
///
/// For an FP8 KV cache (dtype_kv) it is a problem of the queries' dtype, whose q is the problem's own, as it lies. If
/// KV heads have their own scales, its 'descale_k' is f32 [heads_q], one for each query head.
///
/// A tensor with block scales is not as it is stored but has its values, rounded to the stored problem's dtype. Below,
/// its descale is then 1.
///
/// In terms of the problem's own numbers
///
/// - its q, k and v are 1 / descale_q, 1 / descale_k and 1 / descale_v times them,
/// - its o is 1 / descale_v times them, and its d_o descale_v times them,
/// - its dq, dk and dv are descale_q, descale_k and descale_v times them.
///
/// Its o and d_o are of `dtype_o`. The problem has its implied operands, and its lengths may be in its mask.
AttentionProblem stored_problem(const AttentionProblem& problem, DType dtype_o);

}  // namespace scoremod::problem
