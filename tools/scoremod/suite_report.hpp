#pragma once

#include <string>

#include "scoremod/check_suite.hpp"

namespace scoremod::cli {

/// Where and of what a report was made, in the words of the command line.
struct SuiteOrigin {
  std::string machine;
  std::string commit;
};

/// The report as JSON, described in docs/reference/check_suite.md.
std::string suite_json(const SuiteReport& report, const SuiteOrigin& origin);

/// What a person wants to know first: counts, the worst results, what was refused and why.
std::string suite_text(const SuiteReport& report);

}  // namespace scoremod::cli
