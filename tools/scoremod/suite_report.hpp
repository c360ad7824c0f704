#pragma once

#include <string>

#include "scoremod/check_suite.hpp"

namespace scoremod::cli {

/// The origin and subject of a report, in the words of the command line.
struct SuiteOrigin {
  std::string machine;
  std::string commit;
};

/// The report as JSON, described in docs/reference/check_suite.md.
std::string suite_json(const SuiteReport& report, const SuiteOrigin& origin);

/// The most important results first: counts, the worst results, refusals and their reasons.
std::string suite_text(const SuiteReport& report);

}  // namespace scoremod::cli
