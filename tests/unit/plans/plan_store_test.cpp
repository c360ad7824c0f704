#include "plans/plan_store.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <fstream>
#include <functional>
#include <string>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <tuple>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/error.hpp"

#include "base/canonical_bytes.hpp"
#include "base/warning.hpp"
#include "plans/store_folder.hpp"
#include "support/scratch_folder.hpp"
#include "unit/plans/colliding_keys.hpp"

namespace scoremod::plans {
namespace {

using test::ScratchFolder;

namespace fs = std::filesystem;

/// Collects warnings instead of printing them.
class Warnings {
 public:
  Warnings() : before_(set_warning_handler([this](const std::string& text) { texts.push_back(text); })) {}
  ~Warnings() { set_warning_handler(before_); }
  Warnings(const Warnings&) = delete;
  Warnings& operator=(const Warnings&) = delete;

  std::vector<std::string> texts;

 private:
  WarningHandler before_;
};

Record record_of(int number, std::size_t payload_bytes = 100) {
  Record record;
  record.engine = "cudnn 9.19.0";
  record.architecture = "sm_90 NVIDIA H200";
  record.label = "plan " + std::to_string(number);
  record.key = CanonicalWriter().integer(number).written();
  record.payload.assign(payload_bytes, static_cast<std::byte>(number));
  return record;
}

bool is_there(PlanStore& store, int number) {
  const Record record = record_of(number);
  const std::vector<StoredFile> files = store.list();
  return std::any_of(files.begin(), files.end(), [&](const StoredFile& file) { return file.label == record.label; });
}

fs::path path_of(const PlanStore& store, const Record& record) {
  return store.directory() / file_name(record.kind, record.key);
}

Bytes read_bytes(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

void write_bytes(const fs::path& path, std::span<const std::byte> bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

/// Makes a file look as if it was last used so long ago.
void set_age(const fs::path& path, std::chrono::seconds age) {
  fs::last_write_time(path, fs::file_time_type::clock::now() - age);
}

std::size_t file_count(const fs::path& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

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

TEST(PlanStore, FunctionsForPeopleTellWhatIsWrong) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "file") << "text";
  EXPECT_THROW(PlanStore(folder.path() / "file").list(), Error);
  EXPECT_TRUE(PlanStore(folder.path() / "nothing").list().empty());
}

/// Whether the process ended with what its body said being true.
bool succeeds(pid_t child) {
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/// Runs `body` in a process of its own.
pid_t start_process(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  bool fine = false;
  try {
    fine = body();
  } catch (...) {
    fine = false;
  }
  ::_exit(fine ? 0 : 1);
}

TEST(PlanStore, AFullDiskLeavesNothingBehind) {
  const ScratchFolder folder;
  const Record before = record_of(1, 100);
  PlanStore(folder.path()).save(before);
  const pid_t child = start_process([&] {
    const Warnings warnings;
    ::signal(SIGXFSZ, SIG_IGN);  // or the limit ends the process instead of failing the write
    const rlimit limit{1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    PlanStore store(folder.path());
    const bool saved = store.save(record_of(2, 5000)) || store.save(record_of(1, 5000));
    return !saved && warnings.texts.size() == 1;
  });
  EXPECT_TRUE(succeeds(child));
  EXPECT_EQ(file_count(folder.path()), 1);
  EXPECT_EQ(PlanStore(folder.path()).load(before.kind, before.key), before.payload);
}

TEST(PlanStore, ProcessesMayUseOneFolderAtOnce) {
  // Writers of the same keys with different payloads, readers, and one that deletes: whatever is loaded is whole.
  constexpr int kRounds = 150;
  constexpr int kKeys = 3;
  const ScratchFolder folder;
  const auto use = [&](int process) {
    PlanStore store(folder.path());
    for (int round = 0; round < kRounds; ++round) {
      Record record = record_of(round % kKeys);
      record.payload.assign(2000 + static_cast<std::size_t>(process) * 1000, static_cast<std::byte>(process));
      if (!store.save(record)) return false;
      const std::optional<Bytes> found = store.load(record.kind, record_of((round + process) % kKeys).key);
      if (!found) continue;
      const auto writer = static_cast<std::size_t>(found->front());
      if (*found != Bytes(2000 + writer * 1000, static_cast<std::byte>(writer))) return false;
    }
    return store.statistics().rejected == 0;
  };
  const auto prune = [&] {
    PlanStore store(folder.path());
    for (int round = 0; round < kRounds; ++round) {
      store.prune(round % 2 == 0 ? 0 : 4000);
      for (const StoredFile& file : store.verify()) {
        if (!file.damage.empty()) return false;
      }
    }
    return true;
  };
  std::vector<pid_t> children;
  for (const int process : {0, 1, 2}) children.push_back(start_process([&, process] { return use(process); }));
  children.push_back(start_process(prune));
  for (const pid_t child : children) EXPECT_TRUE(succeeds(child));
  PlanStore store(folder.path());
  EXPECT_LE(file_count(folder.path()), kKeys) << "no file is left half written";
}

TEST(PlanStore, ThreadsMayUseOneStoreAtOnce) {
  const ScratchFolder folder;
  PlanStore store(folder.path());
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        store.save(record_of(round % 5));
        store.load(RecordKind::kPlan, record_of((round + 1) % 5).key);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const PlanStoreStatistics statistics = store.statistics();
  EXPECT_EQ(statistics.writes, 200);
  EXPECT_EQ(statistics.hits + statistics.misses, 200);
  EXPECT_EQ(statistics.rejected, 0);
}

}  // namespace
}  // namespace scoremod::plans
