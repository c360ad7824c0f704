#include "runtime/size_classes.hpp"

#include <gtest/gtest.h>

#include "planner/selection.hpp"

namespace scoremod::runtime {
namespace {

AttentionProblem sized(std::int64_t seq_q, std::int64_t seq_kv) {
  AttentionProblem problem;
  problem.batch = 2;
  problem.heads_q = problem.heads_kv = 8;
  problem.seq_q = seq_q;
  problem.seq_kv = seq_kv;
  return problem;
}

TEST(SizeClasses, HoldSizesThatDifferByLessThanAQuarter) {
  const planner::Selection selection = planner::select({});
  const auto of = [&](std::int64_t seq_q, std::int64_t seq_kv) {
    return size_class(sized(seq_q, seq_kv), selection, 0);
  };
  for (std::int64_t keys = 1; keys < 5000; ++keys) {
    EXPECT_NE(of(1, keys), of(1, keys + keys / 4 + 1)) << keys;
    if (of(1, keys) == of(1, keys + 1)) continue;
    EXPECT_EQ(of(1, keys + 1), of(1, keys + 1 + keys / 8)) << keys;  // a class begins here
  }
  EXPECT_NE(of(16, 512), of(17, 512));
  EXPECT_EQ(of(1024, 512), of(1025, 512));
  EXPECT_NE(of(1, 512), size_class(sized(1, 512), selection, 1));
  planner::Selection other = selection;
  other.backends.pop_back();
  EXPECT_NE(of(1, 512), size_class(sized(1, 512), other, 0));
}

TEST(SizeClasses, RememberTheFastestBackend) {
  FastestPlans fastest;
  const planner::Selection selection = planner::select({});
  const SizeClass one = size_class(sized(1, 512), selection, 0), other = size_class(sized(1, 5120), selection, 0);
  const auto forward = std::make_shared<const planner::Considered>();
  fastest.remember(one, {selection.backends.front(), forward});
  EXPECT_EQ(fastest.find(one).backend, selection.backends.front());
  EXPECT_EQ(fastest.find(one).forward, forward);
  EXPECT_EQ(fastest.find(other).backend, nullptr);
  fastest.remember(one, {selection.backends.back(), nullptr});
  EXPECT_EQ(fastest.find(one).backend, selection.backends.back());
  EXPECT_EQ(fastest.find(one).forward, nullptr);
}

/// A process may know a thousand structures, whose kernels would take gigabytes.
TEST(SizeClasses, KeepNoCandidateWhosePlansAreGone) {
  FastestPlans fastest;
  const planner::Selection selection = planner::select({});
  const SizeClass one = size_class(sized(1, 512), selection, 0);
  auto forward = std::make_shared<const planner::Considered>();
  auto backward = std::make_shared<const planner::Considered>();
  const std::weak_ptr<const planner::Considered> kept = forward;
  fastest.remember(one, {selection.backends.front(), forward, false, backward});
  EXPECT_EQ(fastest.find(one).backward, backward);
  backward.reset();
  EXPECT_EQ(fastest.find(one).forward, nullptr) << "one direction is not enough";
  EXPECT_EQ(fastest.find(one).backend, selection.backends.front());
  forward.reset();
  EXPECT_TRUE(kept.expired());
  EXPECT_EQ(fastest.find(one).backend, selection.backends.front());
}

/// Serves all sizes, or needs a plan for each.
class SizedBackend final : public backend::Backend {
 public:
  explicit SizedBackend(bool all_sizes) : all_sizes_(all_sizes) {}
  const char* name() const override { return "sized"; }
  bool serves_all_sizes() const override { return all_sizes_; }
  std::vector<UnsupportedReason> objections(const compiler::CompiledProblem&, const backend::Task&,
                                            const backend::Target*) const override {
    return {};
  }
  std::vector<backend::Candidate> candidates(const compiler::CompiledProblem&, const backend::Task&,
                                             const backend::Target&, std::vector<UnsupportedReason>&) const override {
    return {};
  }

 private:
  bool all_sizes_;
};

TEST(SizeClasses, ForgetWhatOnlyServesOncePlansWereBuiltAhead) {
  const SizedBackend of_all_sizes(true), of_one(false);
  const planner::Selection selection = planner::select({});
  const SizeClass one = size_class(sized(1, 512), selection, 0), other = size_class(sized(1, 5120), selection, 0);
  const auto forward = std::make_shared<const planner::Considered>();
  FastestPlans fastest;
  fastest.remember(one, {&of_all_sizes, forward, true});
  EXPECT_EQ(fastest.find(one).forward, forward);
  EXPECT_TRUE(fastest.find(one).serves);
  fastest.remember(other, {&of_one});
  EXPECT_EQ(fastest.find(one).backend, nullptr);
  EXPECT_EQ(fastest.find(other).backend, &of_one);
  fastest.remember(one, {&of_all_sizes, forward});
  EXPECT_EQ(fastest.find(one).forward, forward);
}

/// To look for a plan takes thirty times as long as a new size without one does.
TEST(SizeClasses, LookForPlansThatWereBuiltAheadUntilManySizesHaveNone) {
  const SizedBackend of_all_sizes(true), of_one(false);
  const planner::Selection selection = planner::select({});
  const SizeClass one = size_class(sized(1, 512), selection, 0), other = size_class(sized(1, 5120), selection, 0);
  const auto forward = std::make_shared<const planner::Considered>();
  FastestPlans fastest;
  fastest.remember(other, {&of_one});
  fastest.remember(one, {&of_all_sizes, forward, true});
  for (int i = 0; i < FastestPlans::kMostLooks; ++i) EXPECT_EQ(fastest.find(one).forward, nullptr) << i;
  EXPECT_EQ(fastest.find(one).forward, forward);
  fastest.remember(other, {&of_one});  // another one that was there
  EXPECT_EQ(fastest.find(one).forward, nullptr);
}

}  // namespace
}  // namespace scoremod::runtime
