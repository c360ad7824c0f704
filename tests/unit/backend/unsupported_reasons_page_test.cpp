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
         "Each reason that `support()`, `explain`, a refused `compile()` or a refused call gives has an id that stays, "
         "a\n"
         "text that says what was expected and what was found, and what would make it supported. All reasons are "
         "given,\n"
         "also without a driver, and also where an earlier one already refuses. A reason with a direction refuses "
         "that\n"
         "one alone: the forward lives on where the backward is refused. This page is made from the table in\n"
         "`src/backend/unsupported.cpp`.\n\n"
         "| id | meaning | what would make it supported |\n| --- | --- | --- |\n";
  for (const RuleInfo& rule : unsupported_rules()) {
    out << "| `" << rule.id << "` | " << rule.meaning << " | " << rule.remedy << " |\n";
  }
  return out.str();
}

TEST(UnsupportedReasonsPage, IsMadeFromTheTable) { test::expect_committed(kPage, page()); }

}  // namespace
}  // namespace scoremod::backend
