#include "base/fork_mutex.hpp"

#include <chrono>
#include <pthread.h>
#include <thread>

namespace scoremod {

/// All that there are. Whoever holds a mutex of the list may make or destroy another one. So the list's own mutex is
/// taken last everywhere but in fork(), which therefore only tries the others.
class ForkMutexes {
 public:
  /// Never destroyed: threads may hold a mutex while the process ends.
  static ForkMutexes& all() {
    static auto& made = *new ForkMutexes;
    return made;
  }

  void add(ForkMutex& mutex) {
    const std::lock_guard lock(own_);
    mutex.next_ = first_;
    if (first_ != nullptr) first_->previous_ = &mutex;
    first_ = &mutex;
  }

  void remove(ForkMutex& mutex) {
    const std::lock_guard lock(own_);
    (mutex.previous_ == nullptr ? first_ : mutex.previous_->next_) = mutex.next_;
    if (mutex.next_ != nullptr) mutex.next_->previous_ = mutex.previous_;
  }

 private:
  ForkMutexes() { pthread_atfork(take, give_back, give_back); }

  /// Takes the list and every mutex in it. It waits for none while it holds others: these may be what that one's holder
  /// waits for. After kPatience it takes what is free: the child may have no use for the rest.
  static void take() {
    constexpr auto kPatience = std::chrono::seconds(1);
    constexpr auto kPause = std::chrono::microseconds(20);
    const auto end = std::chrono::steady_clock::now() + kPatience;
    for (;;) {
      all().own_.lock();
      if (all().try_all() || std::chrono::steady_clock::now() > end) return;
      give_back();
      std::this_thread::sleep_for(kPause);
    }
  }

  static void give_back() {
    for (ForkMutex* mutex = all().first_; mutex != nullptr; mutex = mutex->next_) {
      if (mutex->held_by_fork_) mutex->unlock();
      mutex->held_by_fork_ = false;
    }
    all().own_.unlock();
  }

  bool try_all() {
    bool took_all = true;
    for (ForkMutex* mutex = first_; mutex != nullptr; mutex = mutex->next_) {
      // A flag of the fork's alone, which nobody reads while another has the mutex.
      const bool taken = mutex->try_lock();
      mutex->held_by_fork_ = taken;
      took_all = took_all && taken;
    }
    return took_all;
  }

  std::mutex own_;
  ForkMutex* first_ = nullptr;
};

ForkMutex::ForkMutex() { ForkMutexes::all().add(*this); }
ForkMutex::~ForkMutex() { ForkMutexes::all().remove(*this); }

}  // namespace scoremod
