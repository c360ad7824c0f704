#pragma once

#include "scoremod/program.hpp"

namespace scoremod::passes {

/// Brings a user's program (value and keep; no derivative) into the form that mask classification reads. Its results
/// stay the same for every score, NaN and inf included:
/// - a select in the value that gives -inf moves into keep. Nested selects do too, and ones below ops that map -inf to
///   -inf for every other argument (x + finite, x * positive constant, min, floor, ...);
/// - keep becomes a left-deep chain of AND terms without duplicates, in an order that depends on their structure only.
///   Negations are pushed to the comparisons, selects between bools become and / or; a keep that is true is dropped.
///   Idempotent.
Program normalize_mask(const Program& program);

}  // namespace scoremod::passes
