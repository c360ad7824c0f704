// Preloaded by test_exit_codes.py in the place of the library's check(): no backend gives wrong numbers on request.

#include <cerrno>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>

#include "scoremod/check.hpp"
#include "scoremod/error.hpp"

namespace scoremod {

CheckReport check(const AttentionProblem& problem, const CheckOptions&) {
  const std::string fault = std::getenv("SCOREMOD_TEST_FAULT");
  if (fault == "unsupported") throw Error(ErrorCode::kUnsupported, "no backend: planted reason");
  if (fault == "environment") throw Error(ErrorCode::kEnvironment, "planted");
  if (fault == "bug") throw Error(ErrorCode::kBug, "planted");
  if (fault == "memory") throw std::bad_alloc();
  if (fault == "threads") throw std::system_error(EAGAIN, std::generic_category());
  if (fault == "surprise") throw std::logic_error("planted");
  CheckReport report;
  report.backend = "planted";
  OutputCheck output;
  output.name = "o";
  output.l2 = {3, 1, 0.5, 10};
  if (fault == "over") output.problems.push_back("the error is 3, it may be 2.5");
  report.outputs.push_back(output);
  if (problem.backward) {
    OutputCheck gradient;
    gradient.name = "dq";
    gradient.l2 = {1, 1, 0.5, 10};
    report.outputs.push_back(gradient);
  }
  if (fault == "memory_written") report.memory_problems.push_back("q was written");
  return report;
}

}  // namespace scoremod
