#pragma once

#include <cstdint>

#include "compiler/compiled_problem.hpp"

namespace scoremod::verification {

/// How many batches, KV heads and query heads of each a trial problem has at most.
struct Breadth {
  std::int64_t batches = 2;
  std::int64_t heads_kv = 2;
  std::int64_t group = 2;
};

/// A problem of the same structure that is small enough for the float64 oracle. It has the same dtype, head dims,
/// layouts and tables. Lengths are two or three tiles of
/// 128, whose last one is full exactly if the problem's is. Shorter problems keep their lengths, but have at least 24
/// unless they have 1, so that every class of rows (trial_inputs()) has room. A trial verifies structure, not length.
/// The program's i32 constants (windows, prefixes) become smaller with the lengths, so that they matter there. If that
/// compiles to another structure, the program stays as it is, and lengths reach beyond its constants, up to 8 tiles.
compiler::CompiledProblem trial_problem(const compiler::CompiledProblem& problem, const Breadth& breadth = {});

}  // namespace scoremod::verification
