#include "plans/plan_cache.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <latch>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/error.hpp"

#include "base/canonical_bytes.hpp"
#include "unit/plans/colliding_keys.hpp"

namespace scoremod::plans {
namespace {

Bytes key_of(int number) { return CanonicalWriter().integer(number).written(); }

using Cache = PlanCache<int>;

/// Each entry counts with its key, beside its plan.
const std::size_t kKeyBytes = key_of(0).size();

Cache::Entry plan_of(int value, std::size_t bytes = 1) { return {std::make_shared<const int>(value), bytes, ""}; }

/// A build that must not run.
Cache::Entry unwanted() {
  ADD_FAILURE() << "built again";
  return plan_of(-1);
}

/// Waits until a statistic of the cache has this value. A cache that never gets there runs into the test's time limit.
void wait_for(const Cache& cache, std::uint64_t PlanCacheStatistics::*statistic, std::uint64_t value) {
  while (cache.statistics().*statistic < value) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST(PlanCache, BuildsAKeyOnce) {
  Cache cache("test");
  EXPECT_EQ(*cache.get(key_of(1), [] { return plan_of(10); }).plan, 10);
  EXPECT_EQ(*cache.get(key_of(1), unwanted).plan, 10);
  EXPECT_EQ(*cache.get(key_of(2), [] { return plan_of(20); }).plan, 20);
  const PlanCacheStatistics statistics = cache.statistics();
  EXPECT_EQ(statistics.hits, 1);
  EXPECT_EQ(statistics.misses, 2);
  EXPECT_EQ(statistics.builds, 2);
  EXPECT_EQ(statistics.entries, 2);
  EXPECT_EQ(statistics.bytes, 2 + 2 * kKeyBytes);
}

TEST(PlanCache, KeepsRefusals) {
  Cache cache("test");
  EXPECT_EQ(cache.get(key_of(1), [] { return Cache::Entry{nullptr, 0, "too large"}; }).refusal, "too large");
  const Cache::Entry again = cache.get(key_of(1), unwanted);
  EXPECT_EQ(again.plan, nullptr);
  EXPECT_EQ(again.refusal, "too large");
  EXPECT_EQ(cache.statistics().refusals, 1);
  EXPECT_EQ(cache.statistics().builds, 0);
}

TEST(PlanCache, KeepsNoFailures) {
  Cache cache("test");
  const auto fail = []() -> Cache::Entry { throw std::runtime_error("out of memory"); };
  EXPECT_THROW(cache.get(key_of(1), fail), std::runtime_error);
  EXPECT_EQ(*cache.get(key_of(1), [] { return plan_of(10); }).plan, 10);
  EXPECT_EQ(cache.statistics().failures, 1);
  EXPECT_EQ(cache.statistics().misses, 2);
  EXPECT_EQ(cache.statistics().entries, 1);
}

TEST(PlanCache, RefusesABuildThatGivesNothing) {
  Cache cache("test");
  EXPECT_THROW(cache.get(key_of(1), [] { return Cache::Entry{}; }), Error);
  EXPECT_EQ(cache.statistics().entries, 0);
}

TEST(PlanCache, DropsTheLeastRecentlyUsedOverACount) {
  Cache cache("test");
  cache.set_limits({2, 1000});
  for (const int number : {1, 2}) cache.get(key_of(number), [=] { return plan_of(number); });
  cache.get(key_of(1), unwanted);
  cache.get(key_of(3), [] { return plan_of(3); });
  EXPECT_EQ(cache.statistics().evictions, 1);
  cache.get(key_of(1), unwanted);
  cache.get(key_of(3), unwanted);
  EXPECT_EQ(*cache.get(key_of(2), [] { return plan_of(22); }).plan, 22);
}

TEST(PlanCache, DropsTheLeastRecentlyUsedOverABytesLimit) {
  Cache cache("test");
  cache.set_limits({100, 100 + 2 * kKeyBytes});
  for (const int number : {1, 2, 3}) cache.get(key_of(number), [=] { return plan_of(number, 40); });
  EXPECT_EQ(cache.statistics().bytes, 80 + 2 * kKeyBytes);
  cache.get(key_of(2), unwanted);
  cache.get(key_of(3), unwanted);
  EXPECT_EQ(*cache.get(key_of(4), [] { return plan_of(4, 101 + 2 * kKeyBytes); }).plan, 4)
      << "too large to be kept, not to be used";
  EXPECT_EQ(cache.statistics().bytes, 0);
  EXPECT_EQ(cache.statistics().entries, 0);
}

TEST(PlanCache, LeavesPlansInUseAlive) {
  Cache cache("test");
  const auto held = cache.get(key_of(1), [] { return plan_of(10); }).plan;
  const std::weak_ptr<const int> other = cache.get(key_of(2), [] { return plan_of(20); }).plan;
  cache.set_limits({0, 0});
  EXPECT_EQ(*held, 10);
  EXPECT_TRUE(other.expired());
  EXPECT_EQ(cache.statistics().evictions, 2);
}

TEST(PlanCache, ClearForgetsPlansAndRefusals) {
  Cache cache("test");
  cache.get(key_of(1), [] { return plan_of(10); });
  cache.get(key_of(2), [] { return Cache::Entry{nullptr, 0, "no"}; });
  cache.clear();
  EXPECT_EQ(cache.statistics().entries, 0);
  EXPECT_EQ(cache.statistics().bytes, 0);
  EXPECT_EQ(*cache.get(key_of(1), [] { return plan_of(11); }).plan, 11);
  EXPECT_EQ(*cache.get(key_of(2), [] { return plan_of(22); }).plan, 22);
}

TEST(PlanCache, TellsKeysOfEqualHashApart) {
  Cache cache("test");
  const auto [one, other] = keys_of_equal_hash();
  ASSERT_EQ(fnv1a(one), fnv1a(other));
  cache.get(one, [] { return plan_of(1); });
  EXPECT_EQ(*cache.get(other, [] { return plan_of(2); }).plan, 2);
  EXPECT_EQ(*cache.get(one, unwanted).plan, 1);
  EXPECT_EQ(*cache.get(other, unwanted).plan, 2);
}

TEST(PlanCache, OneThreadBuildsAndTheOthersWait) {
  constexpr int kThreads = 8;
  Cache cache("test");
  std::atomic<int> builds = 0;
  const auto build = [&] {
    ++builds;
    wait_for(cache, &PlanCacheStatistics::waits, kThreads - 1);
    return plan_of(10);
  };
  std::vector<std::thread> threads;
  std::array<std::shared_ptr<const int>, kThreads> found;
  for (auto& plan : found) threads.emplace_back([&] { plan = cache.get(key_of(1), build).plan; });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(builds, 1);
  for (const auto& plan : found) EXPECT_EQ(plan, found[0]);
  EXPECT_EQ(cache.statistics().waits, kThreads - 1);
  EXPECT_EQ(cache.statistics().misses, 1);
}

TEST(PlanCache, AFailureReachesAllWhoWaitAndTheNextTriesAgain) {
  constexpr int kThreads = 8;
  Cache cache("test");
  const auto build = [&]() -> Cache::Entry {
    wait_for(cache, &PlanCacheStatistics::waits, kThreads - 1);
    throw Error(ErrorCode::kEnvironment, "driver lost");
  };
  std::atomic<int> failures = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      try {
        cache.get(key_of(1), build);
      } catch (const Error& error) {
        failures += error.what() == std::string("driver lost") && error.code() == ErrorCode::kEnvironment ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, kThreads);
  EXPECT_EQ(cache.statistics().failures, 1);
  EXPECT_EQ(*cache.get(key_of(1), [] { return plan_of(10); }).plan, 10);
}

TEST(PlanCache, BuildsOfDifferentKeysRunSideBySide) {
  // Each build ends only when all have begun: with one at a time this would never end.
  constexpr int kThreads = 4;
  Cache cache("test");
  std::latch all_building(kThreads);
  std::vector<std::thread> threads;
  for (int number = 0; number < kThreads; ++number) {
    threads.emplace_back([&, number] {
      cache.get(key_of(number), [&] {
        all_building.arrive_and_wait();
        return plan_of(number);
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cache.statistics().builds, kThreads);
}

TEST(PlanCache, AnswersWhileAnotherKeyIsBuilt) {
  Cache cache("test");
  cache.get(key_of(1), [] { return plan_of(1); });
  cache.get(key_of(2), [&] {
    EXPECT_EQ(*cache.get(key_of(1), unwanted).plan, 1);
    EXPECT_EQ(*cache.get(key_of(3), [] { return plan_of(3); }).plan, 3);
    return plan_of(2);
  });
  EXPECT_EQ(cache.statistics().entries, 3);
}

TEST(PlanCache, ABuildThatAsksForItselfIsABug) {
  Cache cache("test");
  EXPECT_THROW(cache.get(key_of(1), [&] { return cache.get(key_of(1), unwanted); }), Error);
  EXPECT_EQ(cache.statistics().entries, 0);
}

TEST(PlanCache, ABuildThatIsClearedServesItsCallerOnly) {
  Cache cache("test");
  const auto outer = cache.get(key_of(1), [&] {
    cache.clear();
    EXPECT_EQ(*cache.get(key_of(1), [] { return plan_of(11); }).plan, 11);
    return plan_of(10);
  });
  EXPECT_EQ(*outer.plan, 10);
  EXPECT_EQ(*cache.get(key_of(1), unwanted).plan, 11);
  EXPECT_EQ(cache.statistics().entries, 1);
}

TEST(PlanCache, FreesPlansOutsideItsLock) {
  // A plan whose end asks the cache would never return if the lock were held.
  struct Asking {
    PlanCache<Asking>* cache;
    std::atomic<int>* ended;
    ~Asking() {
      cache->statistics();
      ++*ended;
    }
  };
  std::atomic<int> ended = 0;
  PlanCache<Asking> cache("test");
  const auto build = [&] {
    return PlanCache<Asking>::Entry{std::shared_ptr<const Asking>(new Asking{&cache, &ended}), 1, ""};
  };
  cache.set_limits({1, 100});
  cache.get(key_of(1), build);
  cache.get(key_of(2), build);
  EXPECT_EQ(ended, 1) << "evicted by a build";
  cache.clear();
  EXPECT_EQ(ended, 2) << "cleared";
  cache.get(key_of(3), build);
  cache.set_limits({0, 0});
  EXPECT_EQ(ended, 3) << "evicted by a limit";
}

TEST(PlanCache, ManyThreadsOnFewKeysUnderPressure) {
  // Values are those of their keys whatever is evicted, cleared, refused or fails meanwhile.
  constexpr int kThreads = 4;
  constexpr int kRounds = 2000;
  constexpr int kKeys = 12;
  Cache cache("test");
  cache.set_limits({5, 400});
  std::atomic<int> wrong = 0;
  const auto work = [&](unsigned seed) {
    for (int round = 0; round < kRounds; ++round) {
      seed = seed * 1664525u + 1013904223u;
      const int number = static_cast<int>(seed >> 16) % kKeys;
      try {
        const Cache::Entry entry = cache.get(key_of(number), [&]() -> Cache::Entry {
          if (number == 0) throw std::runtime_error("fails");
          if (number == 1) return {nullptr, 0, "refused"};
          return plan_of(number, 50 + static_cast<std::size_t>(number));
        });
        const bool right = number == 1 ? entry.refusal == "refused" : entry.plan != nullptr && *entry.plan == number;
        wrong += right && number != 0 ? 0 : 1;
      } catch (const std::runtime_error&) {
        wrong += number == 0 ? 0 : 1;
      }
      if (round % 500 == 499) cache.clear();
    }
  };
  std::vector<std::thread> threads;
  for (unsigned thread = 0; thread < kThreads; ++thread) threads.emplace_back(work, thread);
  for (std::thread& thread : threads) thread.join();
  const PlanCacheStatistics statistics = cache.statistics();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(statistics.hits + statistics.misses + statistics.waits, kThreads * kRounds);
  EXPECT_EQ(statistics.misses, statistics.builds + statistics.refusals + statistics.failures);
  EXPECT_LE(statistics.entries, 5);
  EXPECT_LE(statistics.bytes, 400);
  cache.clear();
  EXPECT_EQ(cache.statistics().bytes, 0);
}

TEST(PlanCache, TheProcessCountsEveryCacheWhileItLives) {
  clear_plan_cache();  // of other tests' leftovers in this process
  const PlanCacheStatistics before = cache_statistics().plans;
  {
    Cache first("first"), second("second");
    first.get(key_of(1), [] { return plan_of(1, 7); });
    second.get(key_of(1), [] { return plan_of(2, 5); });
    EXPECT_EQ(cache_statistics().plans.bytes, before.bytes + 12 + 2 * kKeyBytes);
    EXPECT_EQ(cache_statistics().plans.builds, before.builds + 2);
    clear_plan_cache();
    EXPECT_EQ(first.statistics().entries, 0);
    EXPECT_EQ(second.statistics().entries, 0);
  }
  EXPECT_EQ(cache_statistics().plans.bytes, before.bytes);
}

TEST(PlanCache, TheProcessLimitsEveryCache) {
  const PlanCacheLimits before = plan_cache_limits();
  Cache old("old");
  for (const int number : {1, 2}) old.get(key_of(number), [=] { return plan_of(number); });
  set_plan_cache_limits({1, 100});
  EXPECT_EQ(plan_cache_limits(), (PlanCacheLimits{1, 100}));
  EXPECT_EQ(old.statistics().entries, 1);
  Cache made_later("made later");
  for (const int number : {1, 2}) made_later.get(key_of(number), [=] { return plan_of(number); });
  EXPECT_EQ(made_later.statistics().entries, 1);
  set_plan_cache_limits(before);
}

}  // namespace
}  // namespace scoremod::plans
