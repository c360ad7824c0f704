#pragma once

#include <string>

#include "scoremod/check.hpp"

namespace scoremod::test {

/// A report as text for a failing test: every output's errors and tolerances, and the faults.
std::string describe(const CheckReport& report);

/// Fails with each thing that a report says is wrong.
void expect_right(const CheckReport& report);

/// The output of this name; fails when there is none.
const OutputCheck& output(const CheckReport& report, const std::string& name);

}  // namespace scoremod::test
