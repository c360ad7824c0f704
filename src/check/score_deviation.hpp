#pragma once

#include "backend/reference/naive_attention.hpp"

namespace scoremod::checking {

/// The standard deviation of the modified scores around the mean of their row, over all kept keys. It decides how
/// peaked the softmax is, which does not depend on a row's mean. 0 when no row has a kept key.
double score_deviation(const AttentionProblem& problem, const backend::reference::InputTensors& inputs,
                       const backend::CallParameters& parameters);

}  // namespace scoremod::checking
