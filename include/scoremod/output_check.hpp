#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace scoremod {

/// One bound of an output: the distance from the oracle, absolute and relative, and how large it may be.
struct ErrorBound {
  double error = 0;        ///< the distance of the backend's output from the oracle's
  double plain_error = 0;  ///< the distance of the plain same-precision evaluation's
  double band = 0;         ///< the rounding band
  double scale = 0;        ///< the oracle's own size in the same norm

  static constexpr double kBandAlone = 3;
  /// Twice the plain evaluation's error and the band. Moves add in quadrature there, as if each were one standard
  /// deviation. A uniform one has 0.6 of that, so one single element in twelve is beyond it. If the plain evaluation
  /// has no error, which otherwise leaves room for that, it is three times the band.
  double tolerance() const { return plain_error > 0 ? 2 * plain_error + band : kBandAlone * band; }
  bool holds() const { return error <= tolerance(); }
  /// False where rounding alone may be as large as the output, such as a gradient whose terms cancel: relative numbers
  /// mean nothing there.
  bool is_above_rounding() const { return scale > band; }
  /// The error as a multiple of the tolerance; infinite for an error where there may be none.
  double part_of_tolerance() const { return error == 0 ? 0 : error / tolerance(); }
};

/// The findings on one output.
struct OutputCheck {
  std::string name;  ///< "o", "lse", "dq", "dk", "dv", or "d_" and an operand's name
  ErrorBound l2;     ///< in the Euclidean norm
  ErrorBound max;    ///< in the maximum norm
  /// Elements that were not written, or are finite where the oracle is not, or the reverse.
  std::int64_t wrong_kind = 0;
  /// Elements that cannot be compared: float32 overflows there, or rounding alone may move them without limit.
  std::int64_t left_out = 0;
  /// The errors found; empty if there are none.
  std::vector<std::string> problems;

  bool passed() const { return problems.empty(); }
  /// The bound whose tolerance the error takes up more of.
  const ErrorBound& tighter() const { return max.part_of_tolerance() > l2.part_of_tolerance() ? max : l2; }
  /// Orders outputs from good to bad: tighter().part_of_tolerance(), and infinite with an element of the wrong kind.
  double badness() const {
    return wrong_kind > 0 ? std::numeric_limits<double>::infinity() : tighter().part_of_tolerance();
  }
};

}  // namespace scoremod
