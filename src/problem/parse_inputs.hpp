#pragma once

#include <vector>

#include "scoremod/problem_file.hpp"

#include "problem/json_reader.hpp"

namespace scoremod::problem {

/// Reads a file's "inputs" for a valid problem.
std::vector<InputSpec> parse_inputs(const Json& value, const AttentionProblem& problem);

}  // namespace scoremod::problem
