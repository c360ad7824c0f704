#include "plans/plan_store.hpp"

#include <gtest/gtest.h>

namespace scoremod::plans {
namespace {

TEST(PlanStore, FindsWhatItSaved) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "scoremod_store_test";
  std::filesystem::remove_all(folder);
  PlanStore store(folder);
  const Record record{RecordKind::kPlan, "cudnn 9.19.0",         "sm_90 NVIDIA H200",
                      "a plan",          Bytes(5, std::byte{1}), Bytes(1000, std::byte{7})};
  EXPECT_FALSE(store.load(record.kind, record.key));
  EXPECT_TRUE(store.save(record));
  EXPECT_EQ(store.load(record.kind, record.key), record.payload);
  EXPECT_FALSE(store.load(RecordKind::kAdmission, record.key));
  ASSERT_EQ(store.list().size(), 1);
  EXPECT_EQ(store.list()[0].damage, "");
  EXPECT_EQ(store.list()[0].label, "a plan");
  EXPECT_EQ(store.verify()[0].damage, "");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace scoremod::plans
