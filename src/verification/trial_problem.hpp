#pragma once

#include "compiler/compiled_problem.hpp"

namespace scoremod::verification {

/// A problem of the same structure that is small enough for the float64 oracle: same dtype, head dims, layouts and
/// tables; at most two batches, key/value heads and query heads of each; lengths of two or three tiles of 128, filled
/// where the problem's fill theirs and else not, and where the problem's are shorter those, but not below 24 unless
/// they are 1, so that every class of rows (trial_inputs()) has room. A trial vouches for structure, not for length:
/// the program's i32 constants (windows, prefixes) become smaller with the lengths, so that they matter there. Where
/// the compiler makes another structure of that, the program stays as it is, and lengths reach beyond its constants, up
/// to 8 tiles.
compiler::CompiledProblem trial_problem(const compiler::CompiledProblem& problem);

}  // namespace scoremod::verification
