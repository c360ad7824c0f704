#include "plans/plan_work.hpp"

#include <thread>

#include <gtest/gtest.h>

namespace scoremod::plans {
namespace {

void work_for(std::chrono::milliseconds time) { std::this_thread::sleep_for(time); }

TEST(PlanWork, IsCountedWithItsTime) {
  const PlanWork before = plan_work(WorkKind::kLoad);
  {
    const CountedWork work(WorkKind::kLoad);
    work_for(std::chrono::milliseconds(5));
  }
  const PlanWork after = plan_work(WorkKind::kLoad);
  EXPECT_EQ(after.count, before.count + 1);
  EXPECT_GE(after.milliseconds, before.milliseconds + 5);
  EXPECT_EQ(cache_statistics().loads.count, after.count);
}

TEST(PlanWork, WithinOtherWorkIsPartOfThat) {
  const std::uint64_t builds = plan_work(WorkKind::kBuild).count;
  const std::uint64_t trials = plan_work(WorkKind::kTrial).count;
  {
    const CountedWork trial(WorkKind::kTrial);
    { const CountedWork build(WorkKind::kBuild); }
    std::thread([] { const CountedWork build(WorkKind::kBuild); }).join();
  }
  EXPECT_EQ(plan_work(WorkKind::kTrial).count, trials + 1);
  EXPECT_EQ(plan_work(WorkKind::kBuild).count, builds + 1) << "another thread's work is its own";
  { const CountedWork build(WorkKind::kBuild); }
  EXPECT_EQ(plan_work(WorkKind::kBuild).count, builds + 2) << "what comes after is counted again";
}

TEST(PlanWork, ThatIsForgottenIsNotCounted) {
  const std::uint64_t loads = plan_work(WorkKind::kLoad).count;
  const std::uint64_t builds = plan_work(WorkKind::kBuild).count;
  {
    CountedWork load(WorkKind::kLoad);
    load.forget();
    const CountedWork build(WorkKind::kBuild);
  }
  EXPECT_EQ(plan_work(WorkKind::kLoad).count, loads);
  EXPECT_EQ(plan_work(WorkKind::kBuild).count, builds + 1);
}

}  // namespace
}  // namespace scoremod::plans
