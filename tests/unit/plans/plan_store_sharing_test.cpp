#include <csignal>
#include <functional>
#include <optional>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "plans/plan_store.hpp"
#include "support/scratch_folder.hpp"
#include "unit/plans/stored_records.hpp"

namespace scoremod::plans {
namespace {

using test::ScratchFolder;

/// Whether the process ended with its body returning true.
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
    // The signal beside the error would end a process that does not handle it.
    ::signal(SIGXFSZ, SIG_DFL);
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
