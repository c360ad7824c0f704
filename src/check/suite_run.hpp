#pragma once

#include <functional>
#include <vector>

#include "scoremod/check_suite.hpp"

#include "check/check_case.hpp"

namespace scoremod::checking {

/// The function that checks one problem: check(), or in tests something with a fault.
using CheckFunction = std::function<CheckReport(const AttentionProblem&, const CheckOptions&)>;

/// Both directions of one case, or the forward alone if it has no backward. Throws nothing that derives from
/// std::exception.
std::vector<SuiteResult> run_case(const CheckCase& test_case, const CompileOptions& compile,
                                  const CheckFunction& check);

/// All cases, several at a time.
SuiteReport run_suite(const std::vector<CheckCase>& cases, const CheckSuiteOptions& options,
                      const CheckFunction& check);

}  // namespace scoremod::checking
