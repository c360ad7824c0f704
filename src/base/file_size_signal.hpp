#pragma once

#include <cerrno>
#include <csignal>
#include <ctime>

namespace scoremod {

/// While one lives, a write of this thread beyond the process's limit of a file's size (`ulimit -f`) fails with EFBIG.
/// Without it SIGXFSZ ends the process, unless the user's program handles that signal.
class HeldFileSizeSignal {
 public:
  HeldFileSizeSignal() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGXFSZ) == 1;
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~HeldFileSizeSignal() {
    // The system sends it to the thread that writes, so the signal taken here belongs to that write.
    const int error_of_the_write = errno;
    const std::timespec at_once{0, 0};
    while (!was_pending_ && sigtimedwait(&signal_, nullptr, &at_once) < 0 && errno == EINTR) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = error_of_the_write;
  }
  HeldFileSizeSignal(const HeldFileSizeSignal&) = delete;
  HeldFileSizeSignal& operator=(const HeldFileSizeSignal&) = delete;

 private:
  sigset_t signal_;
  sigset_t before_;
  bool was_pending_ = false;
};

}  // namespace scoremod
