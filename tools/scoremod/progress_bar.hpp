#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace scoremod::cli {

/// One line on the standard error that shows how far a long task is: only on a terminal, and only from its third second
/// on. A thread of its own draws it, so that the time moves on while a single call runs.
class ProgressBar {
 public:
  ProgressBar();
  /// Clears the line.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Shows the current stage, and the part of the whole that is done, in [0, 1].
  void update(const std::string& stage, double fraction);

 private:
  void draw_until_done();
  void draw();

  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::mutex mutex_;
  std::condition_variable done_changed_;
  std::string stage_;
  double fraction_ = 0;
  bool done_ = false;
  bool drawn_ = false;
  std::thread drawer_;
};

}  // namespace scoremod::cli
