#include "base/fork_mutex.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <latch>
#include <memory>
#include <mutex>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

namespace scoremod {
namespace {

using std::chrono::milliseconds;

/// The exit status of a child that does `body`, which gives its own; -1 where it is not there after 20 seconds.
template <class Body>
int status_of_child(const Body& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    _exit(body());
  }
  int status = -1;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(ForkMutex, IsFreeInAChildAndItsStateWhole) {
  ForkMutex mutex;
  int first = 0, second = 0;
  std::latch changes(1);
  std::thread holder([&] {
    const std::lock_guard lock(mutex);
    first = 1;
    changes.count_down();
    std::this_thread::sleep_for(milliseconds(50));
    second = 1;
  });
  changes.wait();
  EXPECT_EQ(status_of_child([&] {
              const std::lock_guard lock(mutex);
              return first == 1 && second == 1 ? 0 : 1;
            }),
            0);
  holder.join();
  EXPECT_TRUE(mutex.try_lock());
  mutex.unlock();
}

TEST(ForkMutex, OfAnotherThreadThatTakesOneInTheOtherIsNoDeadlock) {
  ForkMutex outer;
  std::atomic<bool> ends = false;
  std::thread holder([&] {
    while (!ends) {
      {
        const std::lock_guard lock(outer);
        auto inner = std::make_unique<ForkMutex>();  // taken into the list, and out of it, under the other
        const std::lock_guard both(*inner);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  });
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(status_of_child([&] {
                const std::lock_guard lock(outer);
                return 0;
              }),
              0);
  }
  ends = true;
  holder.join();
}

TEST(ForkMutex, IsNotWaitedForWithoutEnd) {
  ForkMutex held, free;
  const std::lock_guard lock(held);  // by the very thread that forks
  EXPECT_EQ(status_of_child([&] { return free.try_lock() ? 0 : 1; }), 0);
  EXPECT_TRUE(free.try_lock());
  free.unlock();
}

TEST(ForkMutex, ServesAConditionVariable) {
  ForkMutex mutex;
  std::condition_variable came;
  bool has_come = false;
  std::thread waiter([&] {
    std::unique_lock<std::mutex> lock(mutex);
    came.wait(lock, [&] { return has_come; });
  });
  {
    const std::lock_guard lock(mutex);
    has_come = true;
  }
  came.notify_one();
  waiter.join();
}

}  // namespace
}  // namespace scoremod
