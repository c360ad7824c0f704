// Writers of a store that are killed at random moments: whatever is loaded is whole, and what they left is deleted.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <optional>
#include <random>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "plans/plan_store.hpp"
#include "support/scratch_folder.hpp"
#include "support/test_seed.hpp"
#include "unit/plans/stored_records.hpp"

namespace scoremod::plans {
namespace {

namespace fs = std::filesystem;

constexpr int kKeys = 4, kWriters = 2;

/// Its bytes say who wrote it, and how many they are.
Bytes payload_of(int writer) {
  return Bytes(50'000 + static_cast<std::size_t>(writer) * 30'000, static_cast<std::byte>(1 + writer));
}

[[noreturn]] void write_without_end(const fs::path& folder, int writer, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  PlanStore store(folder);
  for (;;) {
    Record record = record_of(static_cast<int>(random() % kKeys));
    record.payload = payload_of(writer);
    store.save(record);
  }
}

/// Writers that run for `time`, and are killed.
void write_and_kill(const fs::path& folder, std::chrono::microseconds time, std::uint64_t seed) {
  std::vector<pid_t> writers;
  for (int writer = 0; writer < kWriters; ++writer) {
    const pid_t child = ::fork();
    if (child == 0) write_without_end(folder, writer, seed + static_cast<std::uint64_t>(writer));
    writers.push_back(child);
  }
  std::this_thread::sleep_for(time);
  for (const pid_t writer : writers) ::kill(writer, SIGKILL);
  for (const pid_t writer : writers) {
    int status = 0;
    ASSERT_EQ(::waitpid(writer, &status, 0), writer);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "a writer ended by itself: " << status;
  }
}

std::vector<fs::path> unfinished_writes(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with(".writing-")) found.push_back(entry.path());
  }
  return found;
}

TEST(PlanStore, IsWholeWhenItsWritersAreKilled) {
  constexpr int kRounds = 150;
  constexpr std::size_t kEnough = 30;
  const test::ScratchFolder folder;
  std::mt19937_64 random(test::test_seed());
  std::size_t loaded = 0, interrupted = 0;
  for (int round = 0; round < kRounds && interrupted < kEnough; ++round) {
    const std::chrono::microseconds time(1000 + random() % 15'000);
    write_and_kill(folder.path(), time, random());
    PlanStore store(folder.path());
    const Warnings warnings;
    for (int number = 0; number < kKeys; ++number) {
      const std::optional<Bytes> found = store.load(RecordKind::kPlan, record_of(number).key);
      if (!found) continue;
      ++loaded;
      ASSERT_FALSE(found->empty());
      EXPECT_EQ(*found, payload_of(static_cast<int>(found->front()) - 1)) << "round " << round;
    }
    EXPECT_EQ(store.statistics().rejected, 0) << "round " << round << ": " << warnings.texts.at(0);
    for (const StoredFile& file : store.verify()) EXPECT_EQ(file.damage, "") << "round " << round;
    const std::vector<fs::path> remains = unfinished_writes(folder.path());
    interrupted += remains.size();
    for (const fs::path& path : remains) set_age(path, std::chrono::hours(2));
    EXPECT_EQ(store.prune(store.max_bytes()).files, remains.size());
    EXPECT_EQ(store.list().size(), file_count(folder.path()));
  }
  EXPECT_GT(loaded, 0u);
  EXPECT_GE(interrupted, kEnough) << "kills met too few writes";
}

}  // namespace
}  // namespace scoremod::plans
