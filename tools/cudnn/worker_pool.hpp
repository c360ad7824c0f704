#pragma once

#include <functional>
#include <string>
#include <vector>

namespace scoremod::explorer {

/// How one job ended.
struct JobResult {
  std::size_t job = 0;
  bool crashed = false;
  std::string line;  ///< the worker's answer; when crashed: how the process ended
};

/// Runs jobs in child processes: each worker reads job numbers, a line each, and answers each with one line. A worker
/// that dies or takes longer than `timeout_seconds` loses its job, which is reported as crashed, and is replaced.
/// `command` is a worker's argv. Calls on_result as results come in, from the calling thread. Throws
/// Error(kEnvironment) when no worker can be started.
void run_jobs(const std::vector<std::string>& command, const std::vector<std::size_t>& jobs, int workers,
              int timeout_seconds, const std::function<void(const JobResult&)>& on_result);

}  // namespace scoremod::explorer
