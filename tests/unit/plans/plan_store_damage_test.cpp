#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <sys/stat.h>
#include <tuple>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/error.hpp"

#include "plans/plan_store.hpp"
#include "support/scratch_folder.hpp"
#include "unit/plans/colliding_keys.hpp"
#include "unit/plans/stored_records.hpp"

namespace scoremod::plans {
namespace {

using test::ScratchFolder;

namespace fs = std::filesystem;

TEST(PlanStore, NeverLoadsADamagedFile) {
  const ScratchFolder folder;
  const Record record = record_of(1, 40);
  PlanStore(folder.path()).save(record);
  const fs::path path = path_of(PlanStore(folder.path()), record);
  const Bytes whole = read_bytes(path);
  const Warnings warnings;
  PlanStore store(folder.path());
  for (std::size_t place = 0; place < whole.size(); ++place) {
    Bytes flipped = whole;
    flipped[place] ^= std::byte{1} << (place % 8);
    write_bytes(path, flipped);
    EXPECT_EQ(store.load(record.kind, record.key), std::nullopt) << "byte " << place << " changed";
    write_bytes(path, std::span(whole).first(place));
    EXPECT_EQ(store.load(record.kind, record.key), std::nullopt) << "cut off after " << place;
  }
  EXPECT_EQ(store.statistics().rejected, 2 * whole.size());
  ASSERT_EQ(warnings.texts.size(), 1) << "one warning is enough";
  EXPECT_NE(warnings.texts[0].find(path.string()), std::string::npos) << warnings.texts[0];
  EXPECT_TRUE(store.save(record)) << "built again";
  EXPECT_EQ(store.load(record.kind, record.key), record.payload);
}

/// Stored plans are code.
TEST(PlanStore, NeverLoadsWhatEveryUserCanWrite) {
  const ScratchFolder folder;
  const Record record = record_of(1, 40);
  PlanStore(folder.path()).save(record);
  const fs::path path = path_of(PlanStore(folder.path()), record);
  const auto loads = [&](mode_t folder_mode, mode_t file_mode, const char* text) {
    EXPECT_EQ(::chmod(folder.path().c_str(), folder_mode), 0);
    EXPECT_EQ(::chmod(path.c_str(), file_mode), 0);
    const Warnings warnings;
    const bool found = PlanStore(folder.path()).load(record.kind, record.key).has_value();
    EXPECT_EQ(warnings.texts.size(), found ? 0U : 1U);
    if (found) return true;
    EXPECT_NE(warnings.texts[0].find(text), std::string::npos) << warnings.texts[0];
    return false;
  };
  EXPECT_TRUE(loads(0700, 0600, ""));
  EXPECT_TRUE(loads(0775, 0664, "")) << "groups are those that a user wanted";
  EXPECT_TRUE(loads(01777, 0600, "")) << "a folder like /tmp, and an own file";
  EXPECT_FALSE(loads(0700, 0666, "a file that every user can write (mode 0666)"));
  EXPECT_FALSE(loads(0777, 0600, "a folder that every user can write (mode 0777)"));
  if (::geteuid() != 0) return;
  EXPECT_EQ(::chown(path.c_str(), 12345, 12345), 0);
  EXPECT_FALSE(loads(01777, 0600, "it is another user's"));
  EXPECT_TRUE(loads(0700, 0600, "")) << "where only this user could have put it";
}

TEST(PlanStore, WritesNothingWhereEveryUserCanWrite) {
  const ScratchFolder folder;
  ASSERT_EQ(::chmod(folder.path().c_str(), 0777), 0);
  const Warnings warnings;
  PlanStore store(folder.path());
  EXPECT_FALSE(store.save(record_of(1)));
  EXPECT_TRUE(fs::is_empty(folder.path()));
  ASSERT_EQ(warnings.texts.size(), 1);
  EXPECT_NE(warnings.texts[0].find("chmod o-w it"), std::string::npos) << warnings.texts[0];
}

TEST(PlanStore, NeverLoadsTheRecordOfAnotherKeyOfTheSameHash) {
  const ScratchFolder folder;
  PlanStore store(folder.path());
  const Warnings warnings;
  Record one = record_of(1), other = record_of(2);
  std::tie(one.key, other.key) = keys_of_equal_hash();
  ASSERT_EQ(path_of(store, one), path_of(store, other));
  store.save(one);
  EXPECT_EQ(store.load(one.kind, one.key), one.payload);
  EXPECT_EQ(store.load(other.kind, other.key), std::nullopt);
  store.save(other);
  EXPECT_EQ(store.load(other.kind, other.key), other.payload);
  EXPECT_EQ(store.load(one.kind, one.key), std::nullopt);
  EXPECT_TRUE(warnings.texts.empty()) << "nothing is damaged";
}

TEST(PlanStore, NeverLoadsARenamedFile) {
  const ScratchFolder folder;
  PlanStore store(folder.path());
  store.save(record_of(1));
  fs::rename(path_of(store, record_of(1)), path_of(store, record_of(2)));
  EXPECT_EQ(store.load(RecordKind::kPlan, record_of(2).key), std::nullopt);
  ASSERT_EQ(store.verify().size(), 1);
  EXPECT_NE(store.verify()[0].damage, "");
  EXPECT_TRUE(store.save(record_of(2)));
  EXPECT_EQ(store.load(RecordKind::kPlan, record_of(2).key), record_of(2).payload);
}

TEST(PlanStore, IsNotStoppedByThingsThatAreNoFiles) {
  const ScratchFolder folder;
  PlanStore store(folder.path());
  const Warnings warnings;
  fs::create_directories(path_of(store, record_of(1)) / "something");
  ASSERT_EQ(::mkfifo(path_of(store, record_of(2)).c_str(), 0600), 0);
  fs::create_symlink("/dev/zero", path_of(store, record_of(3)));
  for (const int number : {1, 2, 3}) EXPECT_EQ(store.load(RecordKind::kPlan, record_of(number).key), std::nullopt);
  EXPECT_EQ(store.statistics().rejected, 3);
  EXPECT_FALSE(store.save(record_of(1))) << "a folder is in the way";
  EXPECT_TRUE(store.save(record_of(2)));
  EXPECT_TRUE(store.save(record_of(3)));
  EXPECT_TRUE(fs::exists("/dev/zero"));
  ASSERT_EQ(warnings.texts.size(), 2) << "one of reading, one of writing";
  EXPECT_NE(warnings.texts[0].find("a folder"), std::string::npos) << warnings.texts[0];
}

TEST(PlanStore, FollowsNoLink) {
  const ScratchFolder folder, elsewhere;
  PlanStore store(folder.path()), other(elsewhere.path());
  const Warnings warnings;
  const Record record = record_of(1);
  ASSERT_TRUE(other.save(record));
  const fs::path target = path_of(other, record), link = path_of(store, record);
  set_age(target, std::chrono::hours(1));
  const auto time = fs::last_write_time(target);
  fs::create_symlink(target, link);
  EXPECT_EQ(store.load(RecordKind::kPlan, record.key), std::nullopt);
  ASSERT_EQ(warnings.texts.size(), 1u);
  EXPECT_NE(warnings.texts[0].find("symbolic link"), std::string::npos) << warnings.texts[0];
  ASSERT_EQ(store.list().size(), 1u);
  EXPECT_NE(store.list()[0].damage.find("symbolic link"), std::string::npos);
  EXPECT_EQ(store.clear().files, 1u);
  EXPECT_FALSE(fs::is_symlink(link));
  EXPECT_EQ(fs::last_write_time(target), time) << "what a link names is not the store's";
}

TEST(PlanStore, ListsAndDeletesWhatIsNoFile) {
  const ScratchFolder folder;
  PlanStore store(folder.path());
  const Warnings warnings;
  const auto make = [&] {
    fs::create_directory(path_of(store, record_of(1)));
    ASSERT_EQ(::mkfifo(path_of(store, record_of(2)).c_str(), 0600), 0);
    fs::create_symlink("nowhere", path_of(store, record_of(3)));
  };
  make();
  EXPECT_EQ(store.list().size(), 3u);
  for (const StoredFile& file : store.verify()) EXPECT_NE(file.damage, "");
  EXPECT_EQ(store.remove_damaged().files, 3u);
  make();
  EXPECT_EQ(store.clear().files, 3u);
  make();
  for (const int number : {1, 2, 3}) {
    EXPECT_TRUE(store.save(record_of(number)));
    EXPECT_TRUE(store.load(RecordKind::kPlan, record_of(number).key));
  }
  EXPECT_TRUE(warnings.texts.empty());
}

TEST(PlanStore, ClearsWhatItCanBesideWhatItCannot) {
  const ScratchFolder folder;
  PlanStore store(folder.path());
  const fs::path full = path_of(store, record_of(1));
  fs::create_directories(full / "something");
  store.save(record_of(2));
  store.save(record_of(3));
  EXPECT_THROW(store.clear(), Error);
  ASSERT_EQ(store.list().size(), 1u);
  EXPECT_TRUE(fs::exists(full / "something"));
}

TEST(PlanStore, FindsDamageInFullOnlyWhenAsked) {
  const ScratchFolder folder;
  PlanStore store(folder.path());
  for (const int number : {1, 2, 3}) store.save(record_of(number));
  Bytes in_payload = read_bytes(path_of(store, record_of(1)));
  in_payload[in_payload.size() - 20] ^= std::byte{1};
  write_bytes(path_of(store, record_of(1)), in_payload);
  write_bytes(path_of(store, record_of(2)), {});
  const auto damaged = [](const std::vector<StoredFile>& files) {
    return std::count_if(files.begin(), files.end(), [](const StoredFile& file) { return !file.damage.empty(); });
  };
  EXPECT_EQ(damaged(store.list()), 1);
  EXPECT_EQ(damaged(store.verify()), 2);
  EXPECT_EQ(store.remove_damaged().files, 2);
  EXPECT_EQ(damaged(store.verify()), 0);
  EXPECT_EQ(store.list().size(), 1);
}

TEST(PlanStore, GoesOnWithoutAFolderThatItCanWrite) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "file") << "text";
  PlanStore store(folder.path() / "file" / "store");
  const Warnings warnings;
  for (const int number : {1, 2, 3}) {
    EXPECT_EQ(store.load(RecordKind::kPlan, record_of(number).key), std::nullopt);
    EXPECT_FALSE(store.save(record_of(number)));
    store.forget(RecordKind::kPlan, record_of(number).key);
  }
  EXPECT_EQ(store.statistics().failed_writes, 3);
  ASSERT_EQ(warnings.texts.size(), 1);
  EXPECT_NE(warnings.texts[0].find("SCOREMOD_CACHE"), std::string::npos) << warnings.texts[0];
}

TEST(PlanStore, SaysWhichFolderCannotBeMadeAndWhy) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "file") << "text";
  std::filesystem::create_symlink("loop", folder.path() / "loop");
  std::filesystem::create_symlink("nothing", folder.path() / "dangling");
  std::filesystem::path deep = folder.path();
  for (int i = 0; i < 20'000; ++i) deep /= "a";
  const std::pair<std::filesystem::path, std::string> cases[] = {
      {folder.path() / "file", "/file: a file with this name is no folder;"},
      {folder.path() / "file" / "below", "/file: a file with this name is no folder;"},
      {folder.path() / "loop" / "below", "/loop/below: Too many levels of symbolic links;"},
      {folder.path() / "dangling" / "below", "/dangling: a broken symbolic link has this name;"},
      {deep, "/a: File name too long;"},
  };
  for (const auto& [path, why] : cases) {
    const Warnings warnings;
    EXPECT_FALSE(PlanStore(path).save(record_of(1)));
    ASSERT_EQ(warnings.texts.size(), 1);
    EXPECT_NE(warnings.texts[0].find(why), std::string::npos) << warnings.texts[0].substr(0, 200);
  }
}

TEST(PlanStore, FunctionsForPeopleTellWhatIsWrong) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "file") << "text";
  EXPECT_THROW(PlanStore(folder.path() / "file").list(), Error);
  EXPECT_TRUE(PlanStore(folder.path() / "nothing").list().empty());
}

}  // namespace
}  // namespace scoremod::plans
