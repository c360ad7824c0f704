#pragma once

#include <span>
#include <string>
#include <vector>

#include "attention_run.hpp"

namespace scoremod::measure {

/// How far one implementation's output is from another's.
struct OutputDifference {
  std::string output;
  double relative = 0;   ///< in the Euclidean norm; infinite where one has a NaN or an infinity that the other has not
  double tolerance = 0;  ///< how large it may be where both compute the same
};

/// Compares the elements (of large outputs every so many) of every output but the LSE, which not every implementation
/// defines for rows without keys.
///
/// Each implementation rounds scores, weights and results to the tensors' dtype a few times; each rounding has a
/// relative size of at most the unit roundoff u, and so the outputs of both may be some u apart. Another function is
/// off by much more: the inputs are such that a modifier changes the weights by factors. The tolerance is 4 u (bf16:
/// 0.016).
///
/// This is no verdict on either implementation, which is check()'s: its bound comes from the float64 oracle and a plain
/// evaluation of the same inputs, which at a benchmark's sizes take hours. It only tells whether both timed the same
/// function.
std::vector<OutputDifference> output_differences(std::span<const RunOutput> expected, std::span<const RunOutput> found);

}  // namespace scoremod::measure
