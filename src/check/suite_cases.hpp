#pragma once

#include <vector>

#include "scoremod/check_suite.hpp"

#include "check/check_case.hpp"

namespace scoremod::checking {

/// The problems that check_suite() checks. Throws Error(kInvalidArgument) as it does.
std::vector<CheckCase> suite_cases(const CheckSuiteOptions& options);

}  // namespace scoremod::checking
