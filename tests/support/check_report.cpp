#include "support/check_report.hpp"

#include <sstream>
#include <stdexcept>

#include <gtest/gtest.h>

namespace scoremod::test {

std::string describe(const CheckReport& report) {
  std::ostringstream text;
  text << report.backend << ", seed " << report.seed << "\n";
  for (const OutputCheck& output : report.outputs) {
    text << "  " << output.name << ": l2 " << output.l2.error << " of " << output.l2.tolerance() << " (norm "
         << output.l2.scale << "), max " << output.max.error << " of " << output.max.tolerance() << ", "
         << output.left_out << " left out\n";
    for (const std::string& problem : output.problems) text << "    " << problem << "\n";
  }
  for (const std::string& problem : report.memory_problems) text << "  " << problem << "\n";
  return text.str();
}

void expect_right(const CheckReport& report) {
  for (const std::string& found : report.memory_problems) ADD_FAILURE() << found;
  for (const OutputCheck& output : report.outputs)
    for (const std::string& found : output.problems) ADD_FAILURE() << output.name << ": " << found;
}

const OutputCheck& output(const CheckReport& report, const std::string& name) {
  for (const OutputCheck& candidate : report.outputs) {
    if (candidate.name == name) return candidate;
  }
  throw std::out_of_range("the report has no output '" + name + "'");
}

}  // namespace scoremod::test
