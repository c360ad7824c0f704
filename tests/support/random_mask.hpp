#pragma once

#include <cstdint>
#include <random>

#include "scoremod/program.hpp"

namespace scoremod::test {

/// A random program whose value is the score. Its keep root has comparisons of indices, constants (some near the ends
/// of i32), operands and tables, in i32 and f32, with every bool op. A higher depth makes larger programs; 2 to 4 is
/// useful.
Program random_mask(std::mt19937_64& random, int depth);

/// As random_mask, and with a value that selects -inf here and there, nested and below other ops.
Program random_masked_value(std::mt19937_64& random, int depth);

}  // namespace scoremod::test
