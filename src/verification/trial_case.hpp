#pragma once

#include <cstdint>

#include "scoremod/inputs.hpp"

#include "backend/plan.hpp"
#include "compiler/compiled_problem.hpp"
#include "verification/sampled_rows.hpp"

namespace scoremod::verification {

/// A call of a trial problem.
struct TrialCase {
  compiler::CompiledProblem problem;
  IndexOffsets offsets;
  ProblemInputs inputs;
  Reach reach;             ///< of the random inputs, before some rows became special cases
  std::uint64_t seed = 0;  ///< of the random inputs

  backend::CallParameters parameters() const;
};

/// The call that shows most of a problem's program. It is the usual one, unless sampled rows of that leave a condition
/// of the program always true or always false, or keep few keys. Then other offsets are tried, if calls may have them,
/// and more batches or heads, if the condition reads their index. A mask such as `h >= 16` keeps nothing in four heads,
/// and a trial that keeps nothing passes whatever the plan computes.
TrialCase trial_case(const compiler::CompiledProblem& problem);

}  // namespace scoremod::verification
