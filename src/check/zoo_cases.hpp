#pragma once

#include <span>
#include <string>
#include <vector>

#include "check/check_case.hpp"

namespace scoremod::checking {

/// The problem with these ready-made modifiers in it. Their parameters matter at lengths of a hundred or so, and
/// operands are filled sensibly. The problem and its floating operands get the dtype.
CheckCase zoo_case(const std::vector<std::string>& names, AttentionProblem problem, DType dtype);

/// No modifier, every entry of the zoo, and combinations that people use, in several shapes and each of the dtypes,
/// with a backward. The shapes have every layout, padded rows, grouped heads, one KV head for all, lengths for each
/// batch, and value dims unlike the key's. Their lengths are odd, unequal and 64 beyond a multiple of 128; some have
/// one query, or indices that start elsewhere. Head dims are multiples of 8 and rows are aligned to 16 bytes, which GPU
/// backends require. Learned operands are of the problem's dtype in every other shape, and f32 in the rest.
std::vector<CheckCase> zoo_cases(std::span<const DType> dtypes);

}  // namespace scoremod::checking
