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

/// What was found of one output in a sample of its rows.
struct OutputSample {
  std::string name;       ///< "o", "lse", "max_logit", "dq", "dk", "dv", or "d_" and an operand's name
  std::int64_t rows = 0;  ///< how many were compared
  double error = 0;       ///< the distance from float64, relative to its size; NaN where one alone is not finite
  double tolerance = 0;   ///< how large it may be

  bool right() const { return error <= tolerance; }
};

/// Holds outputs of calls to float64 in a few of their rows, for problems whose whole check() would take hours: 64
/// query rows of one batch and head (of o, lse, max_logit and dq: blocks of 16 spread over the sequence), and likewise
/// 64 rows of dk and dv of one batch and key/value head; all there are of shorter sequences. The gradient of an operand
/// is compared in 16 entries along each sequence that it varies along, unless more than 2^22 scores go into those: then
/// it is left out, as are outputs of other names.
///
/// By the rule that verification goes by: in the Euclidean and in the maximum norm the error may be twice that of a
/// plain evaluation in the problem's own precision, and a rounding band of half a unit of the dtype. For a sequence of
/// 4096 and head dim 128 it takes some 9 GFLOP in float64 for gradients, shared among the cores, and little else.
///
/// `inputs` is what the calls were given and `outputs` what they wrote, in host memory, as ProblemBuffers has both; a
/// backward's are compared with what follows from q, k, v and d_o alone. Throws Error(kInvalidArgument) as validate()
/// does, and Error(kUnsupported) for problems with ragged, paged or 8-bit tensors or with keys of dropout.
SCOREMOD_API std::vector<OutputSample> check_sample(const AttentionProblem& problem, const InputBuffers& inputs,
                                                    std::span<const OutputTensor> outputs,
                                                    const CallOptions& options = {});

}  // namespace scoremod
