#pragma once

#include <random>

#include "scoremod/problem.hpp"

namespace scoremod::test {

/// The problem at other sizes and with dense tensors: its structure is the same.
AttentionProblem at_other_sizes(AttentionProblem problem, std::mt19937_64& random);

}  // namespace scoremod::test
