#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "backend/kernels/backend/kernels_backend.hpp"
#include "backend/kernels/hopper/family.hpp"
#include "backend/kernels/split_kv/family.hpp"
#include "base/concat.hpp"
#include "compiler/pipeline.hpp"
#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"
#include "support/tiled_call.hpp"
#include "unit/backend/kernels/kernel_candidates.hpp"
#include "verification/trial_problem.hpp"

namespace scoremod::backend {
namespace {

/// Four heads share one of keys.
AttentionProblem decoding(std::int64_t seq_q, const char* program = "value = score") {
  AttentionProblem problem = problem_of(program);
  problem.batch = 16;
  problem.heads_q = 32;
  problem.heads_kv = 8;
  problem.seq_q = seq_q;
  problem.seq_kv = 8192;
  problem.backward = problem.stats = false;
  for (std::size_t i = 0; i < problem.operands.size(); ++i)
    problem.operands[i] = problem::default_spec(problem, problem.program.operands()[i]);
  return problem;
}

/// The label of the candidate that is predicted to be fastest.
std::string best_label(const AttentionProblem& problem, const Target& target) {
  const auto candidates = candidates_of(problem, Direction::kForward, target);
  const auto milliseconds = [](const Candidate& candidate) { return candidate.predicted.milliseconds; };
  return std::ranges::min_element(candidates, {}, milliseconds)->label;
}

TEST(KernelsBackend, OffersSplitKvTheRowsThatTheyFill) {
  for (const auto& [queries, rows] : {std::pair{1, "16x"}, {4, "16x"}, {8, "32x"}, {16, "64x"}}) {
    const std::string label = best_label(decoding(queries), a100());
    EXPECT_NE(label.find(concat("split-KV kernels with tiles of ", rows)), std::string::npos) << label;
  }
  for (const Candidate& candidate : candidates_of(decoding(65), Direction::kForward))
    EXPECT_EQ(candidate.label.find("split-KV"), std::string::npos);
}

/// TMA loads are faster than threads' copies, even if most rows of the WGMMAs are unused.
TEST(KernelsBackend, TakesHopperKernelsForUpTo64RowsOfSplitKv) {
  const auto is_hopper = [](std::int64_t queries, const Target& target) {
    return best_label(decoding(queries), target).find("hopper split-KV") != std::string::npos;
  };
  for (const std::int64_t queries : {1, 4, 8, 16}) {
    EXPECT_TRUE(is_hopper(queries, h200())) << queries;
    EXPECT_FALSE(is_hopper(queries, a100())) << queries;
  }
  EXPECT_FALSE(is_hopper(17, h200())) << "68 rows";
}

/// Over pages of 16 keys.
AttentionProblem over_pages(std::int64_t batch, std::int64_t seq_kv) {
  AttentionProblem problem = decoding(1);
  problem.batch = batch;
  problem.seq_kv = seq_kv;
  problem.lengths.kv = true;
  problem.paged = PagedKeys{16, batch * seq_kv / 16, seq_kv / 16};
  return problem::with_implied_operands(std::move(problem));
}

/// One sequence is shared out evenly by any kernel, and where lengths differ by little or a window leaves most keys
/// out, even shares of all keys were slower.
TEST(KernelsBackend, SharesOutTheKeysThatThereAreOfSeveralSequences) {
  const auto is_persistent = [](const AttentionProblem& problem, const Target& target) {
    return best_label(problem, target).find("persistent") != std::string::npos;
  };
  for (const Target& target : {a100(), h200()}) {
    EXPECT_TRUE(is_persistent(over_pages(32, 131072), target));
    EXPECT_TRUE(is_persistent(over_pages(4096, 32), target));
    EXPECT_FALSE(is_persistent(over_pages(1, 8192), target));
    EXPECT_FALSE(is_persistent(decoding(1), target));
  }
  // On another device the last round of CTAs has fewer of them.
  EXPECT_FALSE(is_persistent(over_pages(32, 8192), h200())) << "a CTA for each tile fills the device once";
}

/// Many short sequences, of which each team has some tiles of rows. Elsewhere the streamed kernel takes as long as the
/// other persistent one.
TEST(KernelsBackend, StreamsTheKeysOfManyShortSequences) {
  const auto is_streamed = [](const AttentionProblem& problem, const Target& target) {
    return best_label(problem, target).find("streamed") != std::string::npos;
  };
  for (const Target& target : {a100(), h200()}) {
    EXPECT_TRUE(is_streamed(over_pages(256, 512), target));
    EXPECT_TRUE(is_streamed(over_pages(4096, 32), target));
    EXPECT_FALSE(is_streamed(over_pages(32, 131072), target));
    EXPECT_FALSE(is_streamed(over_pages(32, 512), target)) << "two tiles of rows of a CTA";
    EXPECT_FALSE(is_streamed(over_pages(256, 8192), target));
  }
}

/// As they were measured; other kernels by boxes with lines of 256 bytes alone.
TEST(TensorMaps, OfSplitKvHaveLinesOf128Bytes) {
  const compiler::CompiledProblem compiled = compiler::compile(decoding(1));
  const AttentionProblem& problem = compiled.problem;
  const auto lines = [&](const kernels::AnyShape& shape) {
    return test::attention_call(compiled, Direction::kForward, shape).cache_lines();
  };
  EXPECT_EQ(lines(kernels::hopper_split_kv_shapes(problem, 132).front()), kernels::CacheLines::k128Bytes);
  EXPECT_EQ(lines(kernels::hopper_shapes(problem, Direction::kForward).front()), kernels::CacheLines::k256Bytes);
}

TEST(KernelsBackend, SharesOutKeysWhereHeadsDoNotFillTheDevice) {
  const auto workspace = [](std::int64_t batch) {
    AttentionProblem problem = decoding(1);
    problem.batch = batch;
    const auto candidates = candidates_of(problem, Direction::kForward);
    const auto milliseconds = [](const Candidate& candidate) { return candidate.predicted.milliseconds; };
    return std::ranges::min_element(candidates, {}, milliseconds)->workspace_bytes;
  };
  EXPECT_EQ(workspace(16), 0U);
  EXPECT_GT(workspace(2), 0U);
}

TEST(KernelsBackend, BuildsNothingForACacheThatGrows) {
  AttentionProblem longer = decoding(4);
  longer.seq_kv = 30000;
  longer.batch = 1;
  const auto some = candidates_of(decoding(4), Direction::kForward), more = candidates_of(longer, Direction::kForward);
  ASSERT_EQ(some.size(), more.size());
  for (std::size_t i = 0; i < some.size(); ++i) EXPECT_EQ(some[i].plan_key, more[i].plan_key);
}

/// The trial has other numbers of queries and heads: every shape is among its candidates all the same.
TEST(KernelsBackend, HasSplitKvVerifiedByASmallProblem) {
  for (const char* program : {"value = score", kCausal, "operand x: i32 [b]\nvalue = score\nkeep = kv_idx < x"}) {
    for (const std::int64_t queries : {1, 4, 16}) {
      const compiler::CompiledProblem compiled = compiler::compile(decoding(queries, program));
      std::vector<UnsupportedReason> reasons;
      const Task forward{Direction::kForward, true, {}};
      const auto own = kernels_backend().candidates(compiled, forward, h200(), reasons),
                 tried = kernels_backend().candidates(verification::trial_problem(compiled), forward, h200(), reasons);
      for (const Candidate& candidate : own)
        EXPECT_TRUE(std::ranges::count(tried, candidate.structural_key, &Candidate::structural_key) == 1)
            << program << ", " << queries << " queries: " << candidate.label;
    }
  }
}

}  // namespace
}  // namespace scoremod::backend
