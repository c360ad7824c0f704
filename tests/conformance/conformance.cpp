#include "conformance/conformance.hpp"

#include <algorithm>

#include <gtest/gtest.h>

#include "backend/backend.hpp"
#include "support/check_report.hpp"

namespace scoremod::test {
namespace {

/// The problems that the backends do not support, with the reason. Remove an entry once the backend supports it: a
/// stale entry fails.
const std::vector<Unsupported>& unsupported_list() {
  static const std::vector<Unsupported> kList{};
  return kList;
}

bool matches(const std::string& pattern, const std::string& name) {
  if (pattern.ends_with('*')) return name.starts_with(pattern.substr(0, pattern.size() - 1));
  return pattern == name;
}

}  // namespace

std::vector<std::string> tested_backends() {
  std::vector<std::string> names;
  for (const backend::Backend* backend : backend::backends()) {
    // A device's backend refuses most of these cases, and passes most tests by having no device. Its committed report
    // of `scoremod check --suite`, made on the device, says which cases it runs, and how well.
    const bool host = backend->memory().kind() == MemoryKind::kHost;
    if (host && std::string(backend->name()) != "reference") names.emplace_back(backend->name());
  }
  return names;
}

std::string judge_support(const std::vector<Unsupported>& list, const Support& answer, const std::string& test_case) {
  const auto entry = std::find_if(list.begin(), list.end(), [&](const Unsupported& line) {
    return line.backend == answer.backend && matches(line.test_case, test_case);
  });
  std::string reasons;
  for (const UnsupportedReason& reason : answer.reasons) reasons += (reasons.empty() ? "" : "; ") + to_string(reason);
  if (entry == list.end()) {
    return answer.supported ? "" : answer.backend + " refuses " + test_case + ", which is not in the list: " + reasons;
  }
  if (answer.supported) {
    return answer.backend + " supports " + test_case + " although the list says that it does not; remove the entry";
  }
  if (reasons.find(entry->reason) != std::string::npos) return "";
  return answer.backend + " refuses " + test_case + " with '" + reasons + "', expected '" + entry->reason + "'";
}

void expect_conforms(const std::string& backend, const checking::CheckCase& test_case,
                     const std::function<void(ProblemInputs&)>& spoil) {
  SCOPED_TRACE(test_case.name);
  CompileOptions compile_options;
  compile_options.backend = backend;
  const Support answer = support(test_case.problem, compile_options).at(0);
  const std::string complaint = judge_support(unsupported_list(), answer, test_case.name);
  EXPECT_EQ(complaint, "");
  if (!answer.supported) return;
  CheckOptions options;
  options.compile.backend = backend;
  options.seed = test_case.seed;
  options.call = test_case.call;
  options.inputs = random_inputs(test_case.problem, {test_case.seed, test_case.fills});
  if (spoil) spoil(*options.inputs);
  const CheckReport report = check(test_case.problem, options);
  EXPECT_TRUE(report.passed()) << describe(report) << to_json(test_case.problem);
}

}  // namespace scoremod::test
