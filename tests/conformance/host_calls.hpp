#pragma once

#include <string>
#include <vector>

#include "scoremod/inputs.hpp"
#include "scoremod/problem_buffers.hpp"

namespace scoremod::test {

/// Puts whole numbers or floats into an operand, in the order of its memory.
void set_operand(const AttentionProblem& problem, ProblemInputs& inputs, const std::string& name,
                 const std::vector<double>& values);

/// The values of an output after calls, dense; empty if the problem has no such output.
std::vector<double> output_values(const ProblemBuffers& buffers, const std::string& name);

/// Runs the directions that the problem has on one backend.
ProblemBuffers run_calls(const AttentionProblem& problem, const ProblemInputs& inputs, const std::string& backend,
                         const CallOptions& call = {});

/// Holds every backend of the host to the oracle on these inputs.
void expect_backends_conform(const AttentionProblem& problem, const ProblemInputs& inputs,
                             const CallOptions& call = {});

}  // namespace scoremod::test
