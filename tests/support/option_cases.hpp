#pragma once

#include <functional>
#include <string>
#include <vector>

#include "scoremod/check.hpp"

#include "check/suite_cases.hpp"

namespace scoremod::test {

/// One option of a problem, or two that may be combined: the fields that they set.
struct Option {
  std::string name;
  std::function<void(AttentionProblem&)> set;
};
/// None, each alone, then each pair that may stand together.
std::vector<Option> options();

/// A kind of modifier, by names of the zoo.
struct Modifier {
  std::string title;
  std::vector<std::string> names;
};
std::vector<Modifier> modifiers();

checking::CheckCase option_case(const Option& option, const Modifier& modifier);

/// A hash of a cell's problem and call: with the code that runs it, they determine its number.
std::string fingerprint(const checking::CheckCase& made);

/// "0.12 / 0.34": the largest error over its tolerance of the forward's outputs, then of the backward's, where there is
/// one.
std::string text_of(const checking::CheckCase& made, const CheckReport& report);

/// The name of the output that is all zero, whose cell would say nothing; empty where none is.
std::string zero_output(const CheckReport& report);

}  // namespace scoremod::test
