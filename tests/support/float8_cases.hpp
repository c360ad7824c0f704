#pragma once

#include <vector>

#include "check/check_case.hpp"

namespace scoremod::test {

/// Forwards of e4m3 tensors that the kernels with FP8 products must be right on. They are attention_kernels_cases()
/// with dense tensors, in head dims that these kernels have. Their o is f32, bf16 and f16 in turns.
std::vector<checking::CheckCase> float8_cases(bool small = false);

}  // namespace scoremod::test
