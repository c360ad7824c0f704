#pragma once

#include <vector>

#include "scoremod/output_check.hpp"

#include "problem/strided_tensor.hpp"

namespace scoremod::verification {

using problem::StridedTensor;

/// Four evaluations of one output, dense.
struct Evaluations {
  const std::vector<double>& found;  ///< the backend's output
  const std::vector<double>& oracle;
  const std::vector<float>& plain;
  const std::vector<double>& band;
};

/// Holds an output to the tolerance that check.hpp describes.
///
/// An element counts in the norms when the oracle, the plain evaluation and the band are finite there. If the first two
/// agree that it is not finite, the backend's must not be either (an LSE must be the same infinity). If they disagree
/// (an overflow of float32, say) it is left out.
OutputCheck compare_output(const StridedTensor& tensor, const Evaluations& evaluations);

}  // namespace scoremod::verification
