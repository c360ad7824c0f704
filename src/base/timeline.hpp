#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace scoremod {

/// A step of making plans, from its construction to its destruction, where SCOREMOD_TIMELINE names a file: appends one
/// line of JSON to it, with the step, what it was done for, when it began and ended, and the process and the thread,
/// which may be others than the user's. Times are milliseconds of the system's monotonic clock, which all processes of
/// a machine share. A file that cannot be written is a warning, once.
class TimedStep {
 public:
  explicit TimedStep(const char* step, std::string_view what = {});
  ~TimedStep();
  TimedStep(const TimedStep&) = delete;
  TimedStep& operator=(const TimedStep&) = delete;

  /// What it was done for, where that is known only later.
  void name(std::string_view what);
  /// Whether anyone wants to know.
  bool is_written() const { return begin_.has_value(); }

 private:
  const char* step_;
  std::string what_;
  std::optional<std::chrono::steady_clock::time_point> begin_;
};

}  // namespace scoremod
