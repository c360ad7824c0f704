#pragma once

#include "scoremod/export.hpp"
#include "scoremod/problem.hpp"

namespace scoremod {

/// How much work a problem is, as far as that is known before any data is. Its arithmetic is that of the matrix
/// products, the usual measure of fused attention's speed:
///
///     forward  = pairs * (2 dim_qk + 2 dim_v)     Q K^T and P V
///     backward = pairs * (6 dim_qk + 4 dim_v)     Q K^T again, dQ, dK; dP and dV
///
/// A multiplication and an addition count as two; softmax and the program are not counted. `pairs` is the number of
/// (query, key) pairs over all batches and query heads that the mask keeps. It is exact for full, empty and band masks
/// and constant prefixes. For other masks it is an upper bound: that of the band, if there is one.
///
/// Bytes are those of the tensors that a call reads and writes, each once: the least that must pass through memory.
struct WorkEstimate {
  double pairs = 0;        ///< that count
  double dense_pairs = 0;  ///< without any mask
  bool exact = true;       ///< false: the mask keeps fewer, depending on its terms and their operands' values
  double forward_flops = 0;
  double backward_flops = 0;  ///< 0 without backward
  double forward_bytes = 0;   ///< q, k, v, operands; o, and the LSE where stats or backward want it
  double backward_bytes = 0;  ///< q, k, v, o, d_o, the LSE, operands; dq, dk, dv and every operand's gradient
  int program_ops = 0;        ///< operations of the compiled program for each pair, leaves not counted
  int derivative_ops = 0;     ///< of the derivative; 0 without backward
};

/// Compiles the problem, and neither plans nor runs anything. Throws Error(kInvalidArgument) for an invalid problem.
SCOREMOD_API WorkEstimate estimate_work(const AttentionProblem& problem);

}  // namespace scoremod
