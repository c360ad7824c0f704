#pragma once

#include <optional>

#include "scoremod/program.hpp"

namespace scoremod::analysis {

/// A finite constant of -2^15 or below that the value may be chosen to be, as in select(keep, score, -1e9), which some
/// write for -inf; nothing where there is none.
///
/// From there on a float32 log-sum-exp is off by more than 2^-10. Where it is that of a row in which every score was
/// chosen so, it has no digit of the number of keys left, and what a backward computes from it is wrong: each key
/// weighs 1 instead of 1 / n.
std::optional<float> finite_mask(const Program& program);

}  // namespace scoremod::analysis
