#include "backend/cudnn/problem_rules.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cudnn/predicted_workspace.hpp"

namespace scoremod::backend::cudnn {
namespace {

AttentionProblem backward_problem(std::int64_t dim, bool deterministic) {
  AttentionProblem problem;
  problem.batch = 2;
  problem.heads_q = problem.heads_kv = 4;
  problem.seq_q = problem.seq_kv = 512;
  problem.dim_qk = problem.dim_v = dim;
  problem.dtype = DType::kBF16;
  problem.backward = true;
  problem.deterministic = deterministic;
  return problem;
}

std::vector<std::string> texts_without(const std::string& name, const std::vector<UnsupportedReason>& reasons) {
  std::vector<std::string> texts;
  for (const UnsupportedReason& reason : reasons) {
    texts.push_back(to_string(reason));
    std::string& text = texts.back();
    if (const std::size_t at = text.find(name); at != std::string::npos) text.erase(at, name.size());
  }
  return texts;
}

std::vector<UnsupportedReason> backward_objections(const AttentionProblem& problem, std::optional<int> capability) {
  return problem_objections(problem, Direction::kBackward, capability);
}

TEST(ProblemRules, GoByFamily) {
  for (const std::int64_t dim : {64, 128, 192, 256, 100}) {
    for (const bool deterministic : {false, true}) {
      const AttentionProblem problem = backward_problem(dim, deterministic);
      EXPECT_EQ(texts_without("sm_121", backward_objections(problem, 121)),
                texts_without("sm_120", backward_objections(problem, 120)));
      EXPECT_EQ(texts_without("sm_103", backward_objections(problem, 103)),
                texts_without("sm_100", backward_objections(problem, 100)));
    }
  }
}

TEST(ProblemRules, RefuseADeterministicBackwardOnlyWhereCudnnHasNone) {
  for (const int capability : {80, 89, 90, 120}) {
    EXPECT_TRUE(backward_objections(backward_problem(128, true), capability).empty()) << capability;
  }
  const auto reasons = backward_objections(backward_problem(128, true), 100);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0].id, "deterministic");
  EXPECT_NE(reasons[0].text.find("do not compile with score functions on sm_100"), std::string::npos);
  EXPECT_TRUE(problem_objections(backward_problem(128, true), Direction::kForward, 100).empty());
  EXPECT_TRUE(backward_objections(backward_problem(128, true), std::nullopt).empty())
      << "it depends on the architecture";
}

TEST(ProblemRules, GiveEveryReasonAtOnceAlsoWithoutADevice) {
  AttentionProblem problem = backward_problem(100, false);
  problem.dtype = DType::kF32;
  problem.seq_q = 1;
  std::vector<std::string> ids;
  for (const UnsupportedReason& reason : backward_objections(problem, std::nullopt)) ids.push_back(reason.id);
  EXPECT_EQ(ids, (std::vector<std::string>{"dtype", "head_dim", "head_dim", "one_query_row"}));
}

TEST(PredictedWorkspace, OfADeterministicBackwardGrowsWithThePairs) {
  AttentionProblem problem = backward_problem(128, true);
  problem.seq_q = problem.seq_kv = 32768;  // 16 GiB
  EXPECT_EQ(predicted_deterministic_workspace(problem, 90),
            std::size_t{8} * 32768 * 32768 * 2 + std::size_t{8} * 32768 * 4);
}

TEST(PredictedWorkspace, OfSizesBeyondAnyMachineIsLargeAndNotNegative) {
  AttentionProblem problem = backward_problem(256, true);
  problem.batch = problem.heads_q = problem.heads_kv = problem.seq_q = problem.seq_kv = std::int64_t{1} << 30;
  EXPECT_GT(predicted_deterministic_workspace(problem, 90), std::size_t{1} << 60);
}

TEST(PredictedWorkspace, PadsToTiles) {
  AttentionProblem problem = backward_problem(64, true);
  problem.seq_q = 65;
  problem.seq_kv = 129;
  EXPECT_EQ(predicted_deterministic_workspace(problem, 90), std::size_t{8} * 128 * 256 * 2 + 8 * 65 * 4);
  EXPECT_EQ(predicted_deterministic_workspace(problem, 80), std::size_t{8} * 128 * 192 * 2 + 8 * 65 * 4);
  problem.heads_kv = 2;
  EXPECT_EQ(predicted_deterministic_workspace(problem, 80),
            std::size_t{8} * 128 * 192 * 2 + 8 * 65 * 4 + 8 * 129 * (64 + 64) * 2);
}

/// Two rows, too: random/423 of seed 667104202 wrote NaN where neither row had a key.
TEST(ProblemRules, RefuseABackwardWithFewQueryRowsAndNoForward) {
  AttentionProblem problem = backward_problem(64, false);
  problem.seq_q = 16;
  EXPECT_TRUE(backward_objections(problem, 90).empty());
  for (const std::int64_t rows : {1, 2, 15}) {
    problem.seq_q = rows;
    const auto reasons = backward_objections(problem, 90);
    ASSERT_EQ(reasons.size(), 1u);
    EXPECT_EQ(reasons[0].id, "one_query_row");
    EXPECT_TRUE(problem_objections(problem, Direction::kForward, 90).empty());
  }
}

}  // namespace
}  // namespace scoremod::backend::cudnn
