#pragma once

#include <string>

#include "scoremod/problem.hpp"

namespace scoremod::test {

/// The program in a problem with a model's sizes, all different, bf16 and with backward: batch 8, heads 32 and 4,
/// lengths 4096 and 8192, dims 192 and 128. Operands are dense f32 or i32, tables have 64 along every dimension.
AttentionProblem large_problem(const std::string& program);

}  // namespace scoremod::test
