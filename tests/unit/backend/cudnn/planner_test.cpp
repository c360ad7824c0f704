#include "backend/cudnn/planner.hpp"

#include <gtest/gtest.h>

#include "compiler/pipeline.hpp"

namespace scoremod::backend::cudnn {
namespace {

TEST(Planner, RefusesTheBackwardOfOneQueryRowBeforeItLooksForADevice) {
  AttentionProblem problem;
  problem.seq_q = 1;
  problem.seq_kv = 400;
  problem.dim_qk = problem.dim_v = 64;
  problem.dtype = DType::kBF16;
  problem.backward = true;
  const DirectionAnswer answer = plan_direction(compiler::compile(problem), Direction::kBackward);
  EXPECT_FALSE(answer.plan);
  ASSERT_EQ(answer.reasons.size(), 1u);
  EXPECT_NE(answer.reasons[0].find("one query row"), std::string::npos) << answer.reasons[0];
}

}  // namespace
}  // namespace scoremod::backend::cudnn
