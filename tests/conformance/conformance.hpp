#pragma once

#include <functional>
#include <string>
#include <vector>

#include "scoremod/check.hpp"

#include "check/check_case.hpp"

namespace scoremod::test {

/// The backends under test: all but the reference, which they are compared with.
std::vector<std::string> tested_backends();

/// Fails the test when the backend does not agree with the oracle, or writes outside its outputs. It also fails if the
/// backend refuses the problem without an entry in the list of unsupported ones, or supports one with an entry. `spoil`
/// changes the random inputs first, when given.
void expect_conforms(const std::string& backend, const checking::CheckCase& test_case,
                     const std::function<void(ProblemInputs&)>& spoil = {});

/// One line of the list of problems that a backend does not support.
struct Unsupported {
  std::string backend;
  std::string test_case;  ///< the case's name, or its beginning before a '*'
  std::string reason;     ///< a part of the reason that the backend gives
};

/// The fault in a backend's answer, given the list; empty if there is none.
std::string judge_support(const std::vector<Unsupported>& list, const Support& answer, const std::string& test_case);

}  // namespace scoremod::test
