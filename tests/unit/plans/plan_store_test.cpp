#include "plans/plan_store.hpp"

#include <filesystem>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "support/scratch_folder.hpp"
#include "unit/plans/stored_records.hpp"

namespace scoremod::plans {
namespace {

using test::ScratchFolder;

namespace fs = std::filesystem;

TEST(PlanStore, FindsWhatItSaved) {
  const ScratchFolder folder;
  PlanStore store(folder.path() / "made" / "at first use");
  const Record record = record_of(1);
  EXPECT_EQ(store.load(record.kind, record.key), std::nullopt);
  EXPECT_FALSE(fs::exists(store.directory()));
  EXPECT_TRUE(store.save(record));
  EXPECT_EQ(store.load(record.kind, record.key), record.payload);
  EXPECT_EQ(store.load(RecordKind::kVerification, record.key), std::nullopt) << "another kind is another record";
  EXPECT_EQ(fs::status(store.directory()).permissions(), fs::perms::owner_all);
  const PlanStoreStatistics statistics = store.statistics();
  EXPECT_EQ(statistics.hits, 1);
  EXPECT_EQ(statistics.misses, 2);
  EXPECT_EQ(statistics.writes, 1);
  EXPECT_EQ(statistics.rejected + statistics.failed_writes, 0);
}

TEST(PlanStore, IsFoundAgainByAnother) {
  const ScratchFolder folder;
  Record record = record_of(1);
  for (const RecordKind kind : kRecordKinds) {
    record.kind = kind;
    PlanStore(folder.path()).save(record);
    EXPECT_EQ(PlanStore(folder.path()).load(kind, record.key), record.payload);
  }
  EXPECT_EQ(PlanStore(folder.path()).list().size(), kRecordKinds.size()) << "and each is known to be the store's";
}

TEST(PlanStore, StaysWhereItIs) {
  const PlanStore store("plans");
  EXPECT_EQ(store.directory(), fs::current_path() / "plans");
}

TEST(PlanStore, ReplacesAndForgets) {
  const ScratchFolder folder;
  PlanStore store(folder.path());
  Record record = record_of(1);
  store.save(record);
  record.payload = Bytes(7, std::byte{9});
  store.save(record);
  EXPECT_EQ(store.load(record.kind, record.key), record.payload);
  EXPECT_EQ(file_count(folder.path()), 1);
  store.forget(record.kind, record.key);
  store.forget(record.kind, record.key);
  EXPECT_EQ(store.load(record.kind, record.key), std::nullopt);
}

TEST(PlanStore, ListsWhatItHolds) {
  const ScratchFolder folder;
  PlanStore store(folder.path());
  store.save(record_of(1));
  const std::vector<StoredFile> files = store.list();
  ASSERT_EQ(files.size(), 1);
  EXPECT_EQ(files[0].damage, "");
  EXPECT_EQ(files[0].kind, "plan");
  EXPECT_EQ(files[0].engine, "cudnn 9.19.0");
  EXPECT_EQ(files[0].architecture, "sm_90 NVIDIA H200");
  EXPECT_EQ(files[0].label, "plan 1");
  EXPECT_EQ(files[0].bytes, fs::file_size(folder.path() / files[0].name));
  EXPECT_NEAR(static_cast<double>(files[0].last_used), static_cast<double>(std::time(nullptr)), 60);
}

TEST(PlanStore, ThatIsOffDoesNothing) {
  const Warnings warnings;
  PlanStore store("");
  EXPECT_FALSE(store.is_on());
  EXPECT_FALSE(store.save(record_of(1)));
  EXPECT_EQ(store.load(RecordKind::kPlan, record_of(1).key), std::nullopt);
  store.forget(RecordKind::kPlan, record_of(1).key);
  EXPECT_TRUE(store.list().empty());
  EXPECT_EQ(store.clear().files, 0);
  EXPECT_TRUE(warnings.texts.empty());
}

}  // namespace
}  // namespace scoremod::plans
