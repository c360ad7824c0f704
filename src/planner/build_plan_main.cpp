// lib/scoremod/build_plan: the helper program that builds a second plan while the library builds the first, if a
// backend builds one at a time in a process (planner/build_process.hpp). It reads a request from the standard input.

#include <csignal>
#include <exception>
#include <iostream>
#include <iterator>
#include <string>
#include <sys/prctl.h>

#include "planner/build_process.hpp"

int main() {
  // Without a parent that waits, the build is of no use.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::string request{std::istreambuf_iterator<char>(std::cin), {}};
  try {
    scoremod::planner::serve_build_request(request);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
