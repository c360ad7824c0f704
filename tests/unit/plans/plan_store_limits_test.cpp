#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "plans/plan_store.hpp"
#include "support/scratch_folder.hpp"
#include "unit/plans/stored_records.hpp"

namespace scoremod::plans {
namespace {

using test::ScratchFolder;

namespace fs = std::filesystem;

TEST(PlanStore, KeepsWhatItHasJustSaved) {
  const ScratchFolder folder;
  PlanStore store(folder.path());
  store.save(record_of(1));
  const std::uint64_t one = store.list()[0].bytes;
  store.set_max_bytes(2 * one);
  store.save(record_of(2));
  for (const int number : {1, 2}) set_age(path_of(store, record_of(number)), std::chrono::hours(-24));
  EXPECT_TRUE(store.save(record_of(3)));
  EXPECT_TRUE(is_there(store, 3));
  EXPECT_EQ(store.list().size(), 2u);
  EXPECT_TRUE(store.save(record_of(4)));
  EXPECT_TRUE(is_there(store, 3) && is_there(store, 4)) << "a time in the future is no reason to stay";
  store.set_max_bytes(one);
  set_age(path_of(store, record_of(3)), std::chrono::seconds(-30));
  EXPECT_TRUE(store.save(record_of(4)));
  EXPECT_TRUE(is_there(store, 4) && !is_there(store, 3)) << "clocks that differ a little";
}

TEST(PlanStore, DropsTheLeastRecentlyUsedOverItsLimit) {
  const ScratchFolder folder;
  PlanStore store(folder.path());
  store.save(record_of(1));
  const std::uint64_t one = store.list()[0].bytes;
  store.set_max_bytes(3 * one);
  for (const int number : {1, 2, 3}) {
    store.save(record_of(number));
    set_age(path_of(store, record_of(number)), std::chrono::seconds(100 - number));
  }
  EXPECT_TRUE(store.load(RecordKind::kPlan, record_of(1).key)) << "now the last used";
  store.save(record_of(4));
  EXPECT_TRUE(is_there(store, 1) && !is_there(store, 2) && is_there(store, 3) && is_there(store, 4));
}

TEST(PlanStore, TakesNoRecordOverItsLimit) {
  const ScratchFolder folder;
  PlanStore store(folder.path(), 1000);
  const Warnings warnings;
  EXPECT_TRUE(store.save(record_of(1)));
  EXPECT_FALSE(store.save(record_of(2, 1000)));
  EXPECT_TRUE(is_there(store, 1));
  EXPECT_EQ(warnings.texts.size(), 1);
}

TEST(PlanStore, PrunesToALimitAndTellsWhatItDeleted) {
  const ScratchFolder folder;
  PlanStore store(folder.path());
  for (const int number : {1, 2, 3}) {
    store.save(record_of(number));
    set_age(path_of(store, record_of(number)), std::chrono::seconds(100 - number));
  }
  const std::uint64_t one = store.list()[0].bytes;
  const StoreDeletion deletion = store.prune(2 * one);
  EXPECT_EQ(deletion.files, 1);
  EXPECT_EQ(deletion.bytes, one);
  EXPECT_FALSE(is_there(store, 1));
  EXPECT_EQ(store.clear().files, 2);
  EXPECT_TRUE(store.list().empty());
}

TEST(PlanStore, LeavesForeignFilesAlone) {
  const ScratchFolder folder;
  PlanStore store(folder.path());
  store.save(record_of(1));
  const std::vector<std::string> foreign{"notes.txt", "plan-1.scoremod", "plan-0123456789abcdeX.scoremod",
                                         "plan-0123456789abcdef.scoremod.bak", ".writing-it.txt"};
  for (const std::string& name : foreign) std::ofstream(folder.path() / name) << "mine";
  EXPECT_EQ(store.list().size(), 1);
  EXPECT_EQ(store.clear().files, 1);
  EXPECT_EQ(store.remove_damaged().files, 0);
  for (const std::string& name : foreign) EXPECT_TRUE(fs::exists(folder.path() / name)) << name;
}

TEST(PlanStore, DeletesWhatInterruptedWritesHaveLeft) {
  const ScratchFolder folder;
  PlanStore store(folder.path());
  const fs::path old = folder.path() / ".writing-0123abcd", young = folder.path() / ".writing-4567abcd";
  for (const fs::path& path : {old, young}) std::ofstream(path) << "half";
  set_age(old, std::chrono::hours(2));
  EXPECT_EQ(store.prune(store.max_bytes()).files, 1);
  EXPECT_FALSE(fs::exists(old));
  EXPECT_TRUE(fs::exists(young)) << "may be being written";
  EXPECT_TRUE(store.list().empty());
}

}  // namespace
}  // namespace scoremod::plans
