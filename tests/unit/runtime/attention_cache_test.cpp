#include "scoremod/attention_cache.hpp"

#include <array>
#include <cstdlib>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/cache.hpp"

#include "support/refusal.hpp"

namespace scoremod {
namespace {

/// A problem that no other test of this process has: seq_q is its number.
AttentionProblem problem_of(int number) {
  return parse_problem(R"({"batch": 1, "heads_q": 1, "seq_q": )" + std::to_string(number) +
                       R"PROBLEM(, "dim_qk": 8, "backward": true, "program": "value = tanh(score)"})PROBLEM");
}

CompileOptions on_cpu() {
  CompileOptions options;
  options.backend = "cpu";
  return options;
}

/// An empty cache with this limit, for as long as it lives.
class CacheOf {
 public:
  explicit CacheOf(std::size_t limit) : before_(attention_cache_limit()) {
    set_attention_cache_limit(limit);
    clear_attention_cache();
  }
  ~CacheOf() { set_attention_cache_limit(before_); }
  CacheOf(const CacheOf&) = delete;
  CacheOf& operator=(const CacheOf&) = delete;

 private:
  std::size_t before_;
};

TEST(AttentionCache, CompilesAndPlansAnEqualProblemOnce) {
  const CacheOf cache(8);
  const CompileCounts before = compile_counts();
  const auto first = cached_attention(problem_of(3), on_cpu());
  EXPECT_EQ(cached_attention(problem_of(3), on_cpu()), first);
  EXPECT_EQ(compile_counts().problems - before.problems, 1);
  EXPECT_EQ(compile_counts().forwards - before.forwards, 1);
  EXPECT_EQ(compile_counts().backwards - before.backwards, 1);
  EXPECT_EQ(first->problem(), problem_of(3));
}

TEST(AttentionCache, TellsProblemsAndOptionsApart) {
  const CacheOf cache(16);
  CompileOptions threads = on_cpu();
  threads.threads = 1;
  CompileOptions passes = on_cpu();
  passes.disabled_passes = {"simplify"};
  CompileOptions waits = on_cpu();
  waits.new_sizes = NewSizes::kWait;
  CompileOptions serves = on_cpu();
  serves.new_sizes = NewSizes::kServe;
  CompileOptions reference;
  reference.backend = "reference";
  AttentionProblem scaled = problem_of(3);
  scaled.scale = 0.5f;
  const std::vector<std::shared_ptr<const Attention>> all{
      cached_attention(problem_of(3), on_cpu()), cached_attention(problem_of(4), on_cpu()),
      cached_attention(scaled, on_cpu()),        cached_attention(problem_of(3), threads),
      cached_attention(problem_of(3), waits),    cached_attention(problem_of(3), serves),
      cached_attention(problem_of(3), passes),   cached_attention(problem_of(3), reference),
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(all[i], all[j]) << i << " and " << j;
  }
  EXPECT_EQ(all.back()->backend(), "reference");
}

TEST(AttentionCache, TakesWhatTheCallerLeftOpenForWhatItComesTo) {
  const CacheOf cache(8);
  CompileOptions spelled_out = on_cpu();
  spelled_out.memory = MemoryKind::kHost;
  spelled_out.device = 0;
  EXPECT_EQ(cached_attention(problem_of(3), on_cpu()), cached_attention(problem_of(3), spelled_out));
}

TEST(AttentionCache, ReadsTheVariablesThatCompilingReads) {
  const CacheOf cache(8);
  const auto before = cached_attention(problem_of(3), on_cpu());
  ASSERT_EQ(setenv("SCOREMOD_MAX_WORKSPACE", "1073741824", 1), 0);
  const auto changed = cached_attention(problem_of(3), on_cpu());
  ASSERT_EQ(unsetenv("SCOREMOD_MAX_WORKSPACE"), 0);
  EXPECT_NE(changed, before);
  EXPECT_EQ(cached_attention(problem_of(3), on_cpu()), before);
}

TEST(AttentionCache, DropsTheLeastRecentlyUsedBeyondItsLimit) {
  const CacheOf cache(2);
  const AttentionCacheStatistics before = attention_cache_statistics();
  const auto first = cached_attention(problem_of(1), on_cpu());
  const auto second = cached_attention(problem_of(2), on_cpu());
  EXPECT_EQ(cached_attention(problem_of(1), on_cpu()), first);
  cached_attention(problem_of(3), on_cpu());
  EXPECT_EQ(attention_cache_statistics().entries, 2);
  EXPECT_EQ(attention_cache_statistics().evictions - before.evictions, 1);
  EXPECT_EQ(cached_attention(problem_of(1), on_cpu()), first);
  EXPECT_NE(cached_attention(problem_of(2), on_cpu()), second);
  EXPECT_EQ(second->problem().seq_q, 2);  // whoever holds one keeps it
}

TEST(AttentionCache, ForgetsEverythingWhenCleared) {
  const CacheOf cache(8);
  const auto kept = cached_attention(problem_of(1), on_cpu());
  clear_attention_cache();
  EXPECT_EQ(attention_cache_statistics().entries, 0);
  EXPECT_NE(cached_attention(problem_of(1), on_cpu()), kept);
}

TEST(AttentionCache, ALimitOfNoneKeepsNone) {
  const CacheOf cache(0);
  const auto kept = cached_attention(problem_of(1), on_cpu());
  EXPECT_NE(cached_attention(problem_of(1), on_cpu()), kept);
  EXPECT_EQ(attention_cache_statistics().entries, 0);
}

TEST(AttentionCache, KeepsNoErrors) {
  const CacheOf cache(8);
  const AttentionCacheStatistics before = attention_cache_statistics();
  AttentionProblem unsupported = problem_of(1);
  CompileOptions options = on_cpu();
  options.disabled_passes = {"nap"};
  for (int i = 0; i < 2; ++i) test::expect_refusal("nap", [&] { cached_attention(unsupported, options); });
  EXPECT_EQ(attention_cache_statistics().failures - before.failures, 2);
  EXPECT_EQ(attention_cache_statistics().entries, 0);
  AttentionProblem invalid = problem_of(1);
  invalid.batch = -2;
  test::expect_refusal("batch", [&] { cached_attention(invalid, on_cpu()); });
}

TEST(AttentionCache, CompilesOnceForThreadsThatAskTogether) {
  const CacheOf cache(8);
  const CompileCounts before = compile_counts();
  constexpr int kThreads = 8;
  std::array<std::shared_ptr<const Attention>, kThreads> found;
  std::latch start(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      found[static_cast<std::size_t>(i)] = cached_attention(problem_of(400), on_cpu());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& each : found) EXPECT_EQ(each, found[0]);
  EXPECT_EQ(compile_counts().problems - before.problems, 1);
  EXPECT_EQ(compile_counts().forwards - before.forwards, 1);
}

TEST(AttentionCache, IsNotThePlanCache) {
  const CacheOf cache(8);
  const auto kept = cached_attention(problem_of(1), on_cpu());
  const PlanCacheStatistics plans = cache_statistics().plans;
  clear_plan_cache();
  EXPECT_EQ(cached_attention(problem_of(1), on_cpu()), kept);
  EXPECT_EQ(cache_statistics().plans.misses, plans.misses);
}

}  // namespace
}  // namespace scoremod
