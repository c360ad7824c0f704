#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "scoremod/attention.hpp"
#include "scoremod/export.hpp"
#include "scoremod/inputs.hpp"
#include "scoremod/problem.hpp"

namespace scoremod {

struct CheckOptions {
  std::string backend;  ///< as in CompileOptions
  int threads = 0;      ///< as in CompileOptions
  std::uint64_t seed = 0;
  /// Used instead of random inputs of the seed.
  std::optional<ProblemInputs> inputs;
  CallOptions call;
  /// Called now and then with what is being done and the part of the whole that is done, in [0, 1].
  std::function<void(const std::string& stage, double fraction)> on_progress;
};

/// One number that an output is held to: the distance from the oracle, absolute and relative, and how large it may be.
struct ErrorBound {
  double error = 0;        ///< the distance of the backend's output from the oracle's
  double plain_error = 0;  ///< the distance of the plain same-precision evaluation's
  double band = 0;         ///< the rounding band
  double scale = 0;        ///< the oracle's own size in the same norm

  double tolerance() const { return 2 * plain_error + band; }
  bool holds() const { return error <= tolerance(); }
  /// False where rounding alone may be as large as the output, such as a gradient whose terms cancel: relative numbers
  /// mean nothing there.
  bool is_above_rounding() const { return scale > band; }
  /// The error as a multiple of the tolerance; infinite for an error where there may be none.
  double part_of_tolerance() const { return error == 0 ? 0 : error / tolerance(); }
};

/// What was found of one output.
struct OutputCheck {
  std::string name;  ///< "o", "lse", "dq", "dk", "dv", or "d_" and an operand's name
  ErrorBound l2;     ///< in the Euclidean norm
  ErrorBound max;    ///< in the maximum norm
  /// Elements that were not written, or are finite where the oracle is not, or the reverse.
  std::int64_t wrong_kind = 0;
  /// Elements that cannot be compared: float32 overflows there, or rounding alone may move them without limit.
  std::int64_t left_out = 0;
  /// What is wrong; empty when all is well.
  std::vector<std::string> problems;

  bool passed() const { return problems.empty(); }
  /// The bound whose tolerance the error takes up more of.
  const ErrorBound& tighter() const { return max.part_of_tolerance() > l2.part_of_tolerance() ? max : l2; }
  /// Orders outputs from good to bad: tighter().part_of_tolerance(), and infinite with an element of the wrong kind.
  double badness() const {
    return wrong_kind > 0 ? std::numeric_limits<double>::infinity() : tighter().part_of_tolerance();
  }
};

struct CheckReport {
  std::string backend;
  std::uint64_t seed = 0;
  std::vector<OutputCheck> outputs;
  /// Writes outside the outputs: into guard bands, stride gaps, inputs or beyond the workspace.
  std::vector<std::string> memory_problems;
  double forward_seconds = 0;  ///< the backend's own time
  double backward_seconds = 0;

  /// No output and no memory problem.
  SCOREMOD_API bool passed() const;
};

/// Runs a backend on a problem, forward and (if the problem has it) backward with every operand gradient, and compares
/// what it writes with the float64 oracle.
///
/// Every buffer stands between guard bands, outputs are filled with NaN first, and afterwards guard bands, stride gaps
/// and inputs must be untouched.
///
/// The tolerance comes from the data. With t the oracle's output, p that of a plain evaluation in the problem's own
/// precision on the same inputs (float32 sums in index order; weights, outputs and score gradients rounded to the
/// dtype), and r the backend's, both in the Euclidean and in the maximum norm
///
///     |r - t|  <=  2 |p - t|  +  |band|
///
/// where the band of an element is the first-order effect of rounding: see src/check/rounding_band.hpp. Infinities and
/// NaN of the oracle must be met by values that are not finite. Throws Error as Attention::compile does.
SCOREMOD_API CheckReport check(const AttentionProblem& problem, const CheckOptions& options = {});

}  // namespace scoremod
