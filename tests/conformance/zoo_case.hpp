#pragma once

#include <string>
#include <vector>

#include "conformance/conformance.hpp"

namespace scoremod::test {

/// The problem with these ready-made modifiers in it, parameters that matter at its sizes, and operands filled with
/// what makes sense for them. Floating operands have the problem's dtype. Throws for a modifier whose parameters are
/// not in the table of zoo_case.cpp.
ConformanceCase zoo_case(const std::vector<std::string>& names, AttentionProblem problem, DType dtype);

}  // namespace scoremod::test
