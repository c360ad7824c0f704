#pragma once

#include <span>
#include <string>
#include <vector>

#include "check/check_case.hpp"

namespace scoremod::checking {

/// The problem with these ready-made modifiers in it, parameters that matter at lengths of a hundred or so, and
/// operands filled with what makes sense for them. The problem and its floating operands get the dtype.
CheckCase zoo_case(const std::vector<std::string>& names, AttentionProblem problem, DType dtype);

/// No modifier, every entry of the zoo, and combinations that people use, in each of several shapes and each of the
/// dtypes, with a backward. Between them the shapes have every layout, padded rows, grouped heads and one key head for
/// all, lengths that are odd, unequal and 64 beyond a multiple of 128, one query, indices that start elsewhere, a
/// length for each batch, and a value dim unlike the key's. Head dims are multiples of 8 and rows are aligned to 16
/// bytes, which GPU backends ask for. Learned operands are of the problem's dtype in every other shape, and f32 in the
/// rest.
std::vector<CheckCase> zoo_cases(std::span<const DType> dtypes);

}  // namespace scoremod::checking
