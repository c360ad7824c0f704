#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "backend/unsupported.hpp"
#include "support/committed_file.hpp"

namespace scoremod::backend {
namespace {

constexpr const char* kPage = SCOREMOD_TEST_SOURCE_DIR "/../docs/reference/unsupported_reasons.md";

std::string page() {
  std::ostringstream out;
  out << "# Why something can't run\n\n"
         "You can look up here the id of a reason that `support()`, `explain`, `compile()` or a call gives.\n\n"
         "```sh\nscoremod explain problem.json\n```\n\n"
         "All reasons are given, also without a driver. A reason with a direction refuses that one alone.\n"
         "Ids stay. This page is made from the table in `src/backend/unsupported.cpp`.\n\n"
         "| id | meaning | what would make it supported |\n| --- | --- | --- |\n";
  for (const RuleInfo& rule : unsupported_rules()) {
    out << "| `" << rule.id << "` | " << rule.meaning << " | " << rule.remedy << " |\n";
  }
  return out.str();
}

TEST(UnsupportedReasonsPage, IsMadeFromTheTable) { test::expect_committed(kPage, page()); }

}  // namespace
}  // namespace scoremod::backend
