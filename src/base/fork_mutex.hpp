#pragma once

#include <mutex>

namespace scoremod {

/// A mutex of state that lives as long as the process. A forked child finds it free and its state whole: fork() waits
/// for the thread that holds it. fork() waits for no more than a second in all, which nothing here is held for. A
/// condition variable takes it as the std::mutex that it is.
class ForkMutex : public std::mutex {
 public:
  ForkMutex();
  ~ForkMutex();
  ForkMutex(const ForkMutex&) = delete;
  ForkMutex& operator=(const ForkMutex&) = delete;

 private:
  friend class ForkMutexes;

  ForkMutex *previous_ = nullptr, *next_ = nullptr;  ///< in the list of all
  bool held_by_fork_ = false;
};

}  // namespace scoremod
