#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace scoremod {

/// A step of making plans, from construction to destruction. If SCOREMOD_TIMELINE names a file, it appends one line of
/// JSON: the step, its purpose, its begin and end, the process and the thread. Times are milliseconds of the system's
/// monotonic clock, which all processes of a machine share. A file that cannot be written is a warning, once.
class TimedStep {
 public:
  explicit TimedStep(const char* step, std::string_view what = {});
  ~TimedStep();
  TimedStep(const TimedStep&) = delete;
  TimedStep& operator=(const TimedStep&) = delete;

  /// Sets the step's purpose, if it is known only later.
  void name(std::string_view what);
  /// Whether anyone wants to know.
  bool is_written() const { return begin_.has_value(); }

 private:
  const char* step_;
  std::string what_;
  std::optional<std::chrono::steady_clock::time_point> begin_;
};

}  // namespace scoremod
