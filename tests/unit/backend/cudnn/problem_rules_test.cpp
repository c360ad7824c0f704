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

std::vector<std::string> without_name(std::vector<std::string> reasons, const std::string& name) {
  for (std::string& reason : reasons) {
    if (const std::size_t at = reason.find(name); at != std::string::npos) reason.erase(at, name.size());
  }
  return reasons;
}

TEST(ProblemRules, GoByFamily) {
  for (const std::int64_t dim : {64, 128, 192, 256, 100}) {
    for (const bool deterministic : {false, true}) {
      const AttentionProblem problem = backward_problem(dim, deterministic);
      EXPECT_EQ(without_name(problem_objections(problem, 121), "sm_121"),
                without_name(problem_objections(problem, 120), "sm_120"));
      EXPECT_EQ(without_name(problem_objections(problem, 103), "sm_103"),
                without_name(problem_objections(problem, 100), "sm_100"));
    }
  }
}

TEST(ProblemRules, RefuseADeterministicBackwardOnlyWhereCudnnHasNone) {
  for (const int capability : {80, 89, 90, 120}) {
    EXPECT_TRUE(problem_objections(backward_problem(128, true), capability).empty()) << capability;
  }
  const std::vector<std::string> reasons = problem_objections(backward_problem(128, true), 100);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_NE(reasons[0].find("do not compile with score functions on sm_100"), std::string::npos) << reasons[0];
  AttentionProblem forward = backward_problem(128, true);
  forward.backward = false;
  EXPECT_TRUE(problem_objections(forward, 100).empty());
}

TEST(ProblemRules, RefuseAWorkspaceAboveTheLimitWithItsSize) {
  AttentionProblem problem = backward_problem(128, true);
  problem.seq_q = problem.seq_kv = 32768;  // 16 GiB
  const std::size_t bytes = predicted_deterministic_workspace(problem, 90);
  EXPECT_EQ(bytes, std::size_t{8} * 32768 * 32768 * 2 + std::size_t{8} * 32768 * 4);
  const std::vector<std::string> reasons = problem_objections(problem, 90);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_NE(reasons[0].find(std::to_string(bytes) + " bytes"), std::string::npos) << reasons[0];
  problem.deterministic = false;
  EXPECT_TRUE(problem_objections(problem, 90).empty());
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

TEST(ProblemRules, RefuseABackwardWithOneQueryRowAndNoForward) {
  AttentionProblem problem = backward_problem(64, false);
  problem.seq_q = 2;
  EXPECT_TRUE(backward_objections(problem).empty());
  problem.seq_q = 1;
  const std::vector<std::string> reasons = backward_objections(problem);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_NE(reasons[0].find("one query row"), std::string::npos) << reasons[0];
  EXPECT_TRUE(problem_objections(problem, 90).empty());
}

}  // namespace
}  // namespace scoremod::backend::cudnn
