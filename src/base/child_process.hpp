#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace scoremod {

/// A program to run beside this process.
struct ChildProcess {
  std::string program;                                           ///< its file
  std::vector<std::pair<std::string, std::string>> environment;  ///< variables beside this process's own
  std::string input;                                             ///< its standard input
  std::chrono::milliseconds limit{0};                            ///< how long it may take
};

/// Runs it to its end; one that takes longer than its limit is ended. Returns an empty text, or why it did not end
/// well: its standard error, or the system's text. Leaves this process's signals unchanged, and works even if the
/// process ignores the end of its children. Never throws for the program's or the system's failures.
std::string run_child(const ChildProcess& child);

}  // namespace scoremod
