#pragma once

#include <functional>
#include <string>
#include <vector>

#include "scoremod/check.hpp"

#include "check/check_case.hpp"

namespace scoremod::test {

/// The backends under test: all but the reference, which is what they are held against.
std::vector<std::string> tested_backends();

/// Fails the test when the backend does not agree with the oracle, writes where it must not, or refuses the problem
/// without an entry in the list of what it does not support; and when there is an entry but the backend supports it.
/// `spoil` changes the random inputs first, when given.
void expect_conforms(const std::string& backend, const checking::CheckCase& test_case,
                     const std::function<void(ProblemInputs&)>& spoil = {});

/// One line of the list of what a backend does not support.
struct Unsupported {
  std::string backend;
  std::string test_case;  ///< the case's name, or its beginning before a '*'
  std::string reason;     ///< a part of the reason that the backend gives
};

/// What is wrong with a backend's answer, given the list; empty when it is as it should be.
std::string judge_support(const std::vector<Unsupported>& list, const Support& answer, const std::string& test_case);

}  // namespace scoremod::test
