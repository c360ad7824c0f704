#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "check/check_case.hpp"

namespace scoremod::test {

/// A forward with an operand `x` in q's dtype that Hopper kernels can load by TMA. It has several tiles of queries, the
/// last one cut off, and of keys.
checking::CheckCase loaded_bias_case(const std::string& program, std::int64_t dim = 64, DType dtype = DType::kF16);

/// x of every mixture of batches and heads, with and without a mask, beside other operands, and of several head dims.
std::vector<checking::CheckCase> loaded_bias_cases();
/// Cases with a backward but without operand gradients, of head dims whose fused backward has room for such tiles.
std::vector<checking::CheckCase> loaded_bias_backward_cases();

}  // namespace scoremod::test
