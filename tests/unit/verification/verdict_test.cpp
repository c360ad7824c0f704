#include "verification/verdict.hpp"

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

#include "scoremod/cache.hpp"
#include "scoremod/error.hpp"

#include "base/warning.hpp"
#include "plans/plan_store.hpp"
#include "support/scratch_folder.hpp"

namespace scoremod::verification {
namespace {

constexpr const char* kVariable = "SCOREMOD_VERIFICATION";

/// A subject that no other test has.
Subject subject(const std::string& name) {
  Subject made;
  for (const char c : name) made.key.push_back(static_cast<std::byte>(c));
  made.engine = "test 1";
  made.architecture = "none";
  made.label = name;
  return made;
}

/// With a plan store of its own.
class Verification : public testing::Test {
 protected:
  void SetUp() override { set_plan_store_directory(folder_.path().string()); }
  void TearDown() override {
    unsetenv(kVariable);
    set_plan_store_directory(before_);
  }

  /// A trial that counts.
  Verdict verified(const Subject& what, const Verdict& verdict = {}) {
    return verify(what, [&] {
      ++runs_;
      return verdict;
    });
  }

  const std::string before_ = plan_store_directory();
  const test::ScratchFolder folder_;
  int runs_ = 0;
};

TEST_F(Verification, RunsOnceAndStoresTheVerdict) {
  const Subject wrong = subject("RunsOnce");
  EXPECT_EQ(verified(wrong, {false, "dq is off"}).reason, "dq is off");
  const Verdict again = verified(wrong);
  EXPECT_FALSE(again.right);
  EXPECT_EQ(again.reason, "dq is off");
  EXPECT_EQ(runs_, 1);
  ASSERT_EQ(list_plan_store().size(), 1);
  EXPECT_EQ(list_plan_store()[0].kind, "verification");
  EXPECT_EQ(list_plan_store()[0].label, "RunsOnce");
}

/// Leaves an earlier process's text in the store, beside a right verdict's word.
void leave(const Subject& subject, std::string_view text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  plans::plan_store()->save({plans::RecordKind::kVerification, subject.engine, subject.architecture, subject.label,
                             subject.key, Bytes(data, data + text.size())});
}

TEST_F(Verification, TriesAgainWhatAnotherRuleRefused) {
  leave(subject("Refused before rules had numbers"), "dq is off");
  leave(subject("Refused by rule 1"), "by rule 1: dq is off");
  leave(subject("Refused by this rule"), "by rule 2: dq is off");
  leave(subject("Right"), "right");
  EXPECT_TRUE(verified(subject("Refused before rules had numbers")).right);
  EXPECT_TRUE(verified(subject("Refused by rule 1")).right);
  EXPECT_EQ(runs_, 2);
  EXPECT_EQ(verified(subject("Refused by this rule")).reason, "dq is off");
  EXPECT_TRUE(verified(subject("Right"), {false, "wrong"}).right);
  EXPECT_EQ(runs_, 2);
}

TEST_F(Verification, TakesShippedVerdictsBeforeItRuns) {
  Subject shipped = subject("TakesShipped");
  shipped.shipped_right = [] { return true; };
  EXPECT_TRUE(verified(shipped, {false, "wrong"}).right);
  EXPECT_EQ(runs_, 0);
  Subject unknown = subject("TakesShipped, not this");
  unknown.shipped_right = [] { return false; };
  EXPECT_FALSE(verified(unknown, {false, "wrong"}).right);
  EXPECT_EQ(runs_, 1);
}

TEST_F(Verification, TriesEachEngineOfALibraryByItself) {
  const Subject unknown = subject("Engines");
  Subject one = unknown, other = unknown;
  one.library_engine = "eng3_k24=7";
  other.library_engine = "eng3_k24=36";
  EXPECT_TRUE(needs_trial(unknown));
  EXPECT_TRUE(verified(one).right);
  EXPECT_FALSE(needs_trial(unknown)) << "some engine was tried, and no more is known before the plan";
  EXPECT_FALSE(needs_trial(one));
  EXPECT_TRUE(needs_trial(other));
  EXPECT_FALSE(verified(other, {false, "o is off"}).right);
  EXPECT_TRUE(verified(one, {false, "o is off"}).right);
  EXPECT_EQ(runs_, 2);
  EXPECT_EQ(list_plan_store().size(), 3) << "one for each engine, and one for the structure";
}

TEST_F(Verification, AlwaysRunsOnceInEachProcess) {
  setenv(kVariable, "always", 1);
  Subject shipped = subject("AlwaysRuns");
  shipped.shipped_right = [] { return true; };
  verified(shipped);
  verified(shipped);
  EXPECT_EQ(runs_, 1);
}

TEST_F(Verification, NeverTrusts) {
  setenv(kVariable, "never", 1);
  EXPECT_TRUE(verified(subject("NeverTrusts"), {false, "wrong"}).right);
  EXPECT_EQ(runs_, 0);
}

TEST_F(Verification, RemembersNothingOfARunThatThrows) {
  const Subject what = subject("Throws");
  EXPECT_THROW(verify(what, []() -> Verdict { throw std::runtime_error("no memory"); }), std::runtime_error);
  EXPECT_TRUE(list_plan_store().empty());
  EXPECT_TRUE(verified(what).right);
  EXPECT_EQ(runs_, 1);
}

/// A process may compile new functions for days.
TEST_F(Verification, ForgetsTheOldestKeysBeyondTheirMemory) {
  setenv(kVariable, "always", 1);
  constexpr int kKeys = 300;
  const auto large = [](int number) {
    Subject made = subject("Forgets " + std::to_string(number));
    made.key.resize(std::size_t{1} << 17);
    return made;
  };
  for (int i = 0; i < kKeys; ++i) verified(large(i));
  EXPECT_EQ(runs_, kKeys);
  verified(large(kKeys - 1));
  EXPECT_EQ(runs_, kKeys);
  verified(large(0));
  EXPECT_EQ(runs_, kKeys + 1);
  unsetenv(kVariable);
  EXPECT_FALSE(needs_trial(large(1))) << "the store has it";
}

TEST_F(Verification, OfOneKeyIsRunByOneOfManyThreads) {
  const Subject what = subject("ManyThreads");
  std::atomic<int> runs = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      verify(what, [&] {
        ++runs;
        std::this_thread::yield();
        return Verdict{};
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(runs, 1);
}

TEST(VerdictOf, NamesTheFirstWrongOutputWithItsNumbers) {
  EXPECT_TRUE(verdict_of({{"dq", 0.5, 0.5, ""}}, backend::Direction::kBackward).right);
  const double nan = std::nan("");
  const Verdict verdict =
      verdict_of({{"dq", 0.1, 0.5, ""}, {"dk", nan, 0.5, ""}, {"dv", 1, 0, ""}}, backend::Direction::kBackward);
  EXPECT_FALSE(verdict.right);
  EXPECT_EQ(verdict.reason,
            "a trial run of the backward on this device gave a wrong dk: relative error nan, expected at most 0.5");
  const Verdict of_rows = verdict_of({{"o", 1, 0.5, "rows without a key"}}, backend::Direction::kForward);
  EXPECT_EQ(
      of_rows.reason,
      "a trial run of the forward on this device gave a wrong o in rows without a key: relative error 1, expected "
      "at most 0.5");
}

TEST(VerificationMode, RefusesWhatItDoesNotKnow) {
  setenv(kVariable, "sometimes", 1);
  EXPECT_THROW(verification_mode(), Error);
  setenv(kVariable, "always", 1);
  EXPECT_EQ(verification_mode(), Mode::kAlways);
  setenv(kVariable, "", 1);
  EXPECT_EQ(verification_mode(), Mode::kFirstUse);
  unsetenv(kVariable);
  EXPECT_EQ(verification_mode(), Mode::kFirstUse);
}

}  // namespace
}  // namespace scoremod::verification
