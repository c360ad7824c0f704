#include <latch>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include "base/canonical_bytes.hpp"
#include "plans/plan_cache.hpp"

namespace scoremod::plans {
namespace {

using Cache = PlanCache<int>;

Cache::Entry plan_of(int value) { return {std::make_shared<const int>(value), 1, ""}; }

TEST(PlanCache, AForkedChildBuildsWhatAThreadOfItsParentIsBuilding) {
  constexpr unsigned kSeconds = 60;  // a child that waits for that thread is ended
  const Bytes key = CanonicalWriter().integer(1).written();
  Cache cache("test");
  std::latch began(1), go_on(1);
  std::thread builder([&] {
    cache.get(key, [&] {
      began.count_down();
      go_on.wait();
      return plan_of(10);
    });
  });
  began.wait();
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(kSeconds);
    const bool builds = *cache.get(key, [] { return plan_of(20); }).plan == 20;
    const bool keeps = *cache.get(key, [] { return plan_of(30); }).plan == 20;
    ::_exit(builds && keeps ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  go_on.count_down();
  builder.join();
  EXPECT_EQ(*cache.get(key, [] { return plan_of(40); }).plan, 10);
}

}  // namespace
}  // namespace scoremod::plans
