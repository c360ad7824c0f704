#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "scoremod/call.hpp"
#include "scoremod/export.hpp"
#include "scoremod/problem.hpp"
#include "scoremod/problem_buffers.hpp"

namespace scoremod {

/// The findings on one output in a sample of its rows.
struct OutputSample {
  std::string name;       ///< "o", "lse", "max_logit", "dq", "dk", "dv", or "d_" and an operand's name
  std::int64_t rows = 0;  ///< how many were compared
  double error = 0;       ///< the distance from float64, relative to its size; NaN where one alone is not finite
  double tolerance = 0;   ///< how large it may be

  bool right() const { return error <= tolerance; }
};

/// Compares a few rows of outputs with float64, for problems whose whole check() would take hours. It takes 64 query
/// rows of one batch and head (of o, lse, max_logit and dq), in blocks of 16 spread over the sequence. From dk and dv
/// it takes 64 rows of one batch and KV head. Shorter sequences are compared in full. The gradient of an operand is
/// compared in 16 entries along each sequence that it varies along. It is left out if over 2^22 scores go into those,
/// as are outputs of other names.
///
/// The rule is that of verification. In both norms the error may be twice that of a plain evaluation in the problem's
/// precision, plus half a unit of the dtype. Gradients of a sequence of 4096 and head dim 128 take about 9 GFLOP in
/// float64, shared among the cores.
///
/// `inputs` and `outputs` are those of the calls, in host memory, as ProblemBuffers has both. A backward's outputs are
/// compared with what follows from q, k, v and d_o alone. Throws Error(kInvalidArgument) as validate() does, and
/// Error(kUnsupported) for varlen, paged or FP8 problems and for dropout keys.
SCOREMOD_API std::vector<OutputSample> check_sample(const AttentionProblem& problem, const InputBuffers& inputs,
                                                    std::span<const OutputTensor> outputs,
                                                    const CallOptions& options = {});

}  // namespace scoremod
