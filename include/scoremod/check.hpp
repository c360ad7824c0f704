#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "scoremod/attention.hpp"
#include "scoremod/export.hpp"
#include "scoremod/inputs.hpp"
#include "scoremod/output_check.hpp"
#include "scoremod/problem.hpp"

namespace scoremod {

struct CheckOptions {
  CompileOptions compile;  ///< which backends may run it, on how many threads
  std::uint64_t seed = 0;
  /// Used instead of random inputs of the seed.
  std::optional<ProblemInputs> inputs;
  CallOptions call;
  /// Whether the problem is compiled with all sizes open, which come with the call (OpenAttention).
  bool open_sizes = false;
  /// Called now and then with the current stage and the part of the whole that is done, in [0, 1].
  std::function<void(const std::string& stage, double fraction)> on_progress;
};

struct CheckReport {
  std::string backend;           ///< that ran the forward
  std::string backward_backend;  ///< that ran the backward; empty where there was none
  std::uint64_t seed = 0;
  std::vector<OutputCheck> outputs;
  /// Writes outside the outputs: into guard bands, stride gaps, inputs or beyond the workspace.
  std::vector<std::string> memory_problems;
  double forward_seconds = 0;  ///< the backend's own time
  double backward_seconds = 0;

  /// No output and no memory problem.
  SCOREMOD_API bool passed() const;
};

/// Runs a backend on a problem and compares its outputs with the float64 oracle. It runs forward and (if the problem
/// has it) backward with every operand gradient.
///
/// Every buffer stands between guard bands, outputs are filled with NaN first, and afterwards guard bands, stride gaps
/// and inputs must be untouched.
///
/// The tolerance comes from the data. Let t be the oracle's output and r the backend's. Let p be that of a plain
/// evaluation in the problem's precision: float32 sums in index order. It rounds weights, outputs and score gradients
/// to the dtype. In the Euclidean and in the maximum norm
///
///     |r - t|  <=  2 |p - t|  +  |band|
///
/// where the band of an element is the first-order effect of rounding: see src/check/rounding_band.hpp. Infinities and
/// NaN of the oracle must be met by values that are not finite. Throws Error as Attention::compile does.
SCOREMOD_API CheckReport check(const AttentionProblem& problem, const CheckOptions& options = {});

}  // namespace scoremod
