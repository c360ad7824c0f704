#include "base/background_thread.hpp"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <latch>
#include <memory>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

namespace scoremod {
namespace {

TEST(BackgroundThread, DoesJobsInTurnBesideItsCaller) {
  BackgroundThread thread;
  std::vector<int> done;
  std::latch may_begin(1), last(1);
  for (int i = 0; i < 3; ++i) {
    thread.add([&, i] {
      may_begin.wait();
      done.push_back(i);
      if (i == 2) last.count_down();
    });
  }
  may_begin.count_down();
  last.wait();
  thread.end();
  EXPECT_EQ(done, (std::vector<int>{0, 1, 2}));
}

TEST(BackgroundThread, OfAForkedChildIsItsOwn) {
  BackgroundThread thread;
  std::latch began(1), may_end(1);
  thread.add([&] {
    began.count_down();
    may_end.wait();
  });
  began.wait();
  std::atomic<bool> waiting_ran = false;
  thread.add([&] { waiting_ran = true; });
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    std::latch done(1);
    thread.add([&] { done.count_down(); });
    done.wait();
    thread.end();
    _exit(waiting_ran ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  may_end.count_down();
  thread.end_with_process(BackgroundThread::AtEnd::kRuns);
  EXPECT_TRUE(waiting_ran);
}

TEST(BackgroundThread, EndsAfterTheJobUnderWayAndDropsTheRest) {
  BackgroundThread thread;
  std::latch began(1), may_end(1);
  std::atomic<int> done = 0;
  thread.add([&] {
    began.count_down();
    may_end.wait();
    ++done;
  });
  for (int i = 0; i < 5; ++i) thread.add([&] { ++done; });
  began.wait();
  std::thread ending([&] { thread.end(); });
  // A job that is added while it ends is either dropped or was there before the end.
  may_end.count_down();
  ending.join();
  EXPECT_GE(done, 1);
  const int before = done;
  thread.add([&] { ++done; });
  thread.end();
  EXPECT_EQ(done, before) << "nothing begins after the end";
}

TEST(BackgroundThread, EndsWithoutAJob) {
  BackgroundThread thread;
  thread.end();
  thread.end();
}

struct Left {
  static constexpr auto kAtEnd = BackgroundThread::AtEnd::kLeaves;
};
struct Run {
  static constexpr auto kAtEnd = BackgroundThread::AtEnd::kRuns;
};
struct Freeing : Left {};
struct Running : Run {};
struct Leaving : Left {};
struct Waiting : Left {};

std::atomic<bool> is_freed = false;

/// Libraries that are loaded after the first job have such handlers.
void require_that_it_is_freed() {
  if (!is_freed) std::_Exit(1);
}

TEST(BackgroundThread, OfTheProcessEndsBeforeExitHandlersOfLaterLibraries) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        std::latch began(1);
        BackgroundThread::of_process<Freeing>().add([&] {
          began.count_down();
          std::this_thread::sleep_for(std::chrono::milliseconds(200));
          is_freed = true;
        });
        std::atexit(require_that_it_is_freed);
        began.wait();
        std::exit(0);
      },
      testing::ExitedWithCode(0), "");
}

TEST(BackgroundThread, OfTheProcessRunsJobsThatHaveNotBegunWherePurposeSays) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        auto& thread = BackgroundThread::of_process<Running>();
        for (int i = 0; i < 3; ++i) {
          thread.add([i] {
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
            is_freed = i == 2;
          });
        }
        std::atexit(require_that_it_is_freed);
        std::exit(0);
      },
      testing::ExitedWithCode(0), "");
}

TEST(BackgroundThread, OfTheProcessLeavesJobsThatHaveNotBegunWherePurposeSays) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  struct Exiting {
    ~Exiting() { std::_Exit(1); }
  };
  EXPECT_EXIT(
      {
        std::latch began(1);
        auto& thread = BackgroundThread::of_process<Leaving>();
        thread.add([&] {
          began.count_down();
          std::this_thread::sleep_for(std::chrono::milliseconds(200));
        });
        thread.add([held = std::make_shared<Exiting>()] {});
        began.wait();
        std::exit(0);
      },
      testing::ExitedWithCode(0), "");
}

TEST(BackgroundThread, OfTheProcessIsNotWaitedForByAForkedOne) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        std::latch began(1);
        BackgroundThread::of_process<Waiting>().add([&] {
          began.count_down();
          std::this_thread::sleep_for(std::chrono::milliseconds(200));
        });
        began.wait();
        const pid_t child = fork();
        if (child == 0) {
          alarm(5);  // ends a child that waits
          std::exit(0);
        }
        int status = 1;
        waitpid(child, &status, 0);
        std::exit(WIFEXITED(status) ? WEXITSTATUS(status) : 2);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace scoremod
