#pragma once

namespace scoremod::backend {

/// How coarsely a forward makes scores and weights, where that is more than float32 sums, and weights in the dtype of
/// the plain evaluation, make it.
struct ForwardRounding {
  double scores = 0;        ///< the error of a score, relative to the magnitudes of its products
  double weights = 0;       ///< the unit roundoff of weights
  double lost_weights = 0;  ///< the part of a row's largest weight that smaller ones' roundings may have anyway

  bool operator==(const ForwardRounding&) const = default;
};

}  // namespace scoremod::backend
