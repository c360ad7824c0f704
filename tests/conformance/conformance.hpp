#pragma once

#include <functional>
#include <string>
#include <vector>

#include "scoremod/check.hpp"

namespace scoremod::test {

/// A problem that every backend must run as the oracle does.
struct ConformanceCase {
  std::string name;
  AttentionProblem problem;
  CallOptions call = {};
  std::vector<FillOverride> fills = {};
  std::uint64_t seed = 0;
  /// Spoils the random inputs when set.
  std::function<void(ProblemInputs&)> edit_inputs = {};
};

/// The backends under test: all but the reference, which is what they are held against.
std::vector<std::string> tested_backends();

/// Fails the test when the backend does not agree with the oracle, writes where it must not, or refuses the problem
/// without an entry in the list of what it does not support; and when there is an entry but the backend supports it.
void expect_conforms(const std::string& backend, const ConformanceCase& test_case);

/// One line of the list of what a backend does not support.
struct Unsupported {
  std::string backend;
  std::string test_case;  ///< the case's name, or its beginning before a '*'
  std::string reason;     ///< a part of the reason that the backend gives
};

/// What is wrong with a backend's answer, given the list; empty when it is as it should be.
std::string judge_support(const std::vector<Unsupported>& list, const Support& answer, const std::string& test_case);

}  // namespace scoremod::test
