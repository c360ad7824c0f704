#pragma once

#include <string>
#include <vector>

#include "scoremod/dtype.hpp"

namespace scoremod::verification {

/// How far an output is from the float64 oracle, relative to the oracle's Euclidean norm.
struct OutputError {
  std::string name;
  double error = 0;      ///< NaN where one is not finite and the other is
  double tolerance = 0;  ///< twice the plain same-precision evaluation's own distance, and half a unit of the dtype

  bool right() const { return error <= tolerance; }
};

/// The LSE is f32 and a logarithm: what it is off by is what the row's weights are off by relatively, so that half a
/// unit of the problem's dtype is allowed absolutely, whatever the LSE's size.
OutputError lse_error(const std::vector<double>& found, const std::vector<double>& truth,
                      const std::vector<float>& plain, DType dtype);

/// Compares dense vectors: what was found, the oracle, and a plain evaluation in the output's own precision.
OutputError output_error(const std::string& name, const std::vector<double>& found, const std::vector<double>& truth,
                         const std::vector<float>& plain, DType dtype);

}  // namespace scoremod::verification
