#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scoremod/inputs.hpp"

#include "check/check_subject.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::test {

/// Whether check() finds nothing wrong with a subject.
bool passes(const compiler::CompiledProblem& right, const checking::Subject& subject, const ProblemInputs& inputs);

/// A subject that is given other data for one operand, which must outlive it.
checking::Subject with_operand(const checking::Subject& subject, const std::string& name,
                               const std::vector<std::int32_t>& data);

}  // namespace scoremod::test
