#include "scoremod/check.hpp"

#include <algorithm>

#include "check/check_subject.hpp"
#include "compiler/pipeline.hpp"

namespace scoremod {

bool CheckReport::passed() const {
  const auto good = [](const OutputCheck& output) { return output.passed(); };
  return memory_problems.empty() && std::all_of(outputs.begin(), outputs.end(), good);
}

CheckReport check(const AttentionProblem& problem, const CheckOptions& options) {
  const Attention attention = Attention::compile(problem, options.compile);
  const ProblemInputs inputs = options.inputs ? *options.inputs : random_inputs(problem, {options.seed, {}});
  return checking::check_subject(compiler::compile(problem), checking::subject_of(attention), inputs, options);
}

}  // namespace scoremod
