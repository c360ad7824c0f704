#include "backend/cudnn/graph/attention_graph.hpp"

#include <gtest/gtest.h>

namespace scoremod::backend::cudnn {
namespace {

TEST(AttentionGraph, OnlyTheBackwardIsAskedToBeDeterministic) {
  AttentionProblem problem;
  problem.dtype = DType::kBF16;
  problem.backward = true;
  const AttentionGraph forward = attention_graph(problem, Direction::kForward, {});
  const AttentionGraph backward = attention_graph(problem, Direction::kBackward, {});
  problem.deterministic = true;
  EXPECT_EQ(attention_graph(problem, Direction::kForward, {}), forward);
  EXPECT_TRUE(attention_graph(problem, Direction::kBackward, {}).deterministic);
  EXPECT_FALSE(backward.deterministic);
}

}  // namespace
}  // namespace scoremod::backend::cudnn
