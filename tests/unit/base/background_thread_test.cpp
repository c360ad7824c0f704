#include "base/background_thread.hpp"

#include <atomic>
#include <latch>
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

}  // namespace
}  // namespace scoremod
