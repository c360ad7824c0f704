#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace scoremod {

/// A program to run beside this process.
struct ChildProcess {
  std::string program;                                           ///< its file
  std::vector<std::pair<std::string, std::string>> environment;  ///< what it sees beside this process's variables
  std::string input;                                             ///< its standard input
  std::chrono::milliseconds limit{0};                            ///< how long it may take
};

/// Runs it to its end; one that takes longer than its limit is ended. Returns an empty text, or why it did not end
/// well: what it wrote to the standard error, or what the system says. Leaves this process's signals as they are, and
/// does as well where the process ignores the end of its children. Never throws for what the program or the system
/// does.
std::string run_child(const ChildProcess& child);

}  // namespace scoremod
