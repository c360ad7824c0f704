#pragma once

#include "compiler/compiled_problem.hpp"

namespace scoremod::verification {

/// A problem of the same structure that is small enough for the float64 oracle: same program, dtype, head dims, layouts
/// and tables; at most two batches and key/value heads, and lengths of a few hundred that fill tiles where the
/// problem's do and else don't, long enough that the program's integer constants (windows, prefixes) lie within.
compiler::CompiledProblem trial_problem(const compiler::CompiledProblem& problem);

}  // namespace scoremod::verification
