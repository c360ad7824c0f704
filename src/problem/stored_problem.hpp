#pragma once

#include "scoremod/problem.hpp"

namespace scoremod::problem {

/// Attention of what tensors of eight bits hold, without their factors: a problem of bf16, which has every number of
/// eight bits, for engines that have none of these. Its program multiplies the score by 'descale_q' and 'descale_k',
/// which it reads as it does any operand; its operands, LSE, largest scores and operands' gradients are the problem's.
/// Its tensors lie densely. In terms of the problem's own numbers
///
/// - its q, k and v are 1 / descale_q, 1 / descale_k and 1 / descale_v times them,
/// - its o is 1 / descale_v times them, and its d_o descale_v times them,
/// - its dq, dk and dv are descale_q, descale_k and descale_v times them.
///
/// Its o and d_o are of `dtype_o`. The problem has its implied operands, and its lengths may be in its mask.
AttentionProblem stored_problem(const AttentionProblem& problem, DType dtype_o);

}  // namespace scoremod::problem
