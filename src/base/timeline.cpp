#include "base/timeline.hpp"

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/concat.hpp"
#include "base/environment.hpp"
#include "base/file_size_signal.hpp"
#include "base/warning.hpp"

namespace scoremod {
namespace {

std::string_view file_name() { return environment_variable("SCOREMOD_TIMELINE"); }

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    // No name of a step, a kernel or an operand has one; a line must stay a line.
    out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return out + '"';
}

std::string milliseconds(std::chrono::steady_clock::time_point time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", std::chrono::duration<double, std::milli>(time.time_since_epoch()).count());
  return text;
}

/// Appends in one write, so that lines of threads and processes do not mix. Returns zero, or the system's error number.
int append(const std::string& line) {
  const HeldFileSizeSignal held;
  const int file = open(std::string(file_name()).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) return errno;
  const ssize_t written = write(file, line.data(), line.size());
  const int error = written == static_cast<ssize_t>(line.size()) ? 0 : written < 0 ? errno : ENOSPC;
  close(file);
  return error;
}

}  // namespace

TimedStep::TimedStep(const char* step, std::string_view what) : step_(step) {
  if (file_name().empty()) return;
  what_ = what;
  begin_ = std::chrono::steady_clock::now();
}

TimedStep::~TimedStep() {
  if (!begin_) return;
  const auto end = std::chrono::steady_clock::now();
  const int error = append(concat("{\"step\": ", quoted(step_), ", \"what\": ", quoted(what_),
                                  ", \"begin_ms\": ", milliseconds(*begin_), ", \"end_ms\": ", milliseconds(end),
                                  ", \"process\": ", getpid(), ", \"thread\": ", syscall(SYS_gettid), "}\n"));
  static std::atomic<bool> warned{false};
  if (error != 0 && !warned.exchange(true))
    warn("SCOREMOD_TIMELINE: '", file_name(), "' cannot be written: ", std::strerror(error));
}

void TimedStep::name(std::string_view what) {
  if (begin_) what_ = what;
}

}  // namespace scoremod
