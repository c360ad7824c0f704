#pragma once

#include <optional>

#include "scoremod/program.hpp"

namespace scoremod::analysis {

/// A finite constant of -2^15 or below that may be chosen as the value, as in select(keep, score, -1e9), which some
/// write for -inf. Nothing if there is none.
///
/// From this magnitude on, a float32 log-sum-exp is off by more than 2^-10. If every score of a row was masked with it,
/// the LSE has lost the number of keys. A backward then gives each key weight 1 in place of 1 / n.
std::optional<float> finite_mask(const Program& program);

}  // namespace scoremod::analysis
