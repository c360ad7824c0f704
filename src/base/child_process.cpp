#include "base/child_process.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <string_view>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/concat.hpp"
#include "base/file_size_signal.hpp"

extern char** environ;

namespace scoremod {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxErrorBytes = 4096;

class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor() { close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int number() const { return number_; }
  void set(int number) { number_ = number; }
  void close() {
    if (number_ >= 0) ::close(number_);
    number_ = -1;
  }

 private:
  int number_;
};

std::string system_words(const char* what, int error) { return concat(what, ": ", std::strerror(error)); }

/// A file without a name, to be read from its beginning. A pipe would end this process by a signal if the child does
/// not read.
bool write_input(const std::string& text, Descriptor& file) {
  file.set(memfd_create("scoremod", MFD_CLOEXEC));
  if (file.number() < 0) return false;
  const HeldFileSizeSignal held;
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t wrote = ::write(file.number(), text.data() + done, text.size() - done);
    if (wrote < 0) return false;
    done += static_cast<std::size_t>(wrote);
  }
  return lseek(file.number(), 0, SEEK_SET) == 0;
}

/// This process's variables without the given ones, and these.
std::vector<std::string> variables(const std::vector<std::pair<std::string, std::string>>& given) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const auto replaces = [&](const auto& variable) { return text.starts_with(variable.first + "="); };
    if (std::ranges::none_of(given, replaces)) all.emplace_back(text);
  }
  for (const auto& [name, value] : given) all.push_back(concat(name, "=", value));
  return all;
}

/// Starts it with the ends of its streams; the error, or 0.
int spawn(const ChildProcess& child, int input, int error_output, pid_t& pid) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, error_output, STDERR_FILENO);
  // The child must not inherit the signals that the calling thread blocks or ignores.
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::vector<std::string> environment = variables(child.environment);
  std::vector<char*> entries;
  for (std::string& entry : environment) entries.push_back(entry.data());
  entries.push_back(nullptr);
  std::string program = child.program;
  const std::array<char*, 2> arguments{program.data(), nullptr};
  const int error = posix_spawn(&pid, program.c_str(), &actions, &attributes, arguments.data(), entries.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

/// Whether the child has ended; `status` is -1 where another part of this process took it, or ignores its children.
bool has_ended(pid_t pid, int& status) {
  status = -1;
  const pid_t found = waitpid(pid, &status, WNOHANG);
  return found == pid || (found < 0 && errno == ECHILD);
}

/// Reads all available bytes; false at the end of the stream.
bool read_available(int descriptor, std::string& text) {
  std::array<char, 1024> part;
  const ssize_t count = ::read(descriptor, part.data(), part.size());
  if (count == 0) return false;
  if (count > 0 && text.size() < kMaxErrorBytes) text.append(part.data(), static_cast<std::size_t>(count));
  return true;
}

/// Waits for the end, and ends it at its limit. Looks at the child itself now and then, because another process of the
/// host's may have inherited the stream and hold it open.
std::string wait_for(pid_t pid, int error_output, std::chrono::milliseconds limit) {
  const Clock::time_point end = Clock::now() + limit;
  std::string text;
  bool open = true;
  int status = 0;
  while (!has_ended(pid, status)) {
    if (Clock::now() >= end) {
      kill(pid, SIGKILL);
      while (!has_ended(pid, status)) usleep(1000);
      return concat("it took longer than ", limit.count(), " ms");
    }
    pollfd stream{error_output, POLLIN, 0};
    if (!open) {
      usleep(1000);
    } else if (poll(&stream, 1, 20) > 0) {
      open = read_available(error_output, text);
    }
  }
  pollfd stream{error_output, POLLIN, 0};
  while (open && poll(&stream, 1, 0) > 0) open = read_available(error_output, text);
  if (status == 0 || (status == -1 && text.empty())) return "";
  while (!text.empty() && text.back() == '\n') text.pop_back();
  if (!text.empty()) return text;
  return WIFSIGNALED(status) ? concat("it was ended by signal ", WTERMSIG(status))
                             : concat("it ended with status ", WEXITSTATUS(status));
}

}  // namespace

std::string run_child(const ChildProcess& child) {
  Descriptor input, reading, writing;
  if (!write_input(child.input, input)) return system_words("its input could not be written", errno);
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return system_words("no pipe to it could be made", errno);
  reading.set(ends[0]);
  writing.set(ends[1]);
  pid_t pid = 0;
  const int error = spawn(child, input.number(), writing.number(), pid);
  if (error != 0) return system_words(concat(child.program, " could not be started").c_str(), error);
  writing.close();
  return wait_for(pid, reading.number(), child.limit);
}

}  // namespace scoremod
