#pragma once

#include <random>
#include <string>
#include <vector>

#include "scoremod/attention.hpp"
#include "scoremod/inputs.hpp"

namespace scoremod::test {

/// A problem with everything that a run of it needs.
struct RandomProblem {
  AttentionProblem problem;
  CallOptions call;
  std::vector<FillOverride> fills;
};

/// A valid problem with a tame random program: any dtype, grouped heads, odd and even lengths around tile borders,
/// equal and different head dims, every layout, padded and permuted strides, operands of every kind, offsets, scales of
/// both signs; most with a backward. At most `max_elements` scores.
RandomProblem random_problem(std::mt19937_64& random, std::int64_t max_elements);

/// What is special about a problem, for messages.
std::string describe(const AttentionProblem& problem);

}  // namespace scoremod::test
