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

TEST(AttentionGraph, LayoutsThatLieAlikeAreOneGraph) {
  const auto graph = [](Layout layout, std::int64_t batch, std::int64_t heads, std::int64_t seq) {
    AttentionProblem problem;
    problem.batch = batch;
    problem.heads_q = problem.heads_kv = heads;
    problem.seq_q = problem.seq_kv = seq;
    problem.dtype = DType::kBF16;
    for (TensorLayout* tensor : {&problem.q, &problem.k, &problem.v, &problem.o}) tensor->layout = layout;
    return attention_graph(problem, Direction::kForward, {});
  };
  using enum Layout;
  const AttentionGraph one_batch = graph(kBSHD, 1, 8, 256);
  EXPECT_EQ(graph(kSBHD, 1, 8, 256), one_batch);
  EXPECT_NE(graph(kBHSD, 1, 8, 256), one_batch);
  EXPECT_EQ(one_batch.q.strides, (std::array<std::int64_t, 4>{131072, 64, 512, 1}));
  EXPECT_EQ(graph(kBHSD, 2, 1, 256), graph(kBSHD, 2, 1, 256));
  EXPECT_EQ(graph(kBHSD, 2, 8, 1), graph(kBSHD, 2, 8, 1));
  EXPECT_EQ(graph(kSBHD, 2, 8, 1), graph(kBSHD, 2, 8, 1));
  // Strides with a meaning stay.
  EXPECT_NE(graph(kSBHD, 2, 8, 256), graph(kBSHD, 2, 8, 256));
}

TEST(AttentionGraph, GradientsLieAsTheProblemSays) {
  AttentionProblem problem;
  problem.batch = 2;
  problem.heads_q = problem.heads_kv = 4;
  problem.seq_q = problem.seq_kv = 32;
  problem.backward = true;
  EXPECT_FALSE(attention_graph(problem, Direction::kForward, {}).gradients);
  const AttentionGraph alike = attention_graph(problem, Direction::kBackward, {});
  EXPECT_EQ(alike.gradients, (GradientTensors{alike.o, alike.q, alike.k, alike.v}));
  problem.dk = TensorLayout{Layout::kBHSD, {}};
  const AttentionGraph graph = attention_graph(problem, Direction::kBackward, {});
  EXPECT_EQ(graph.gradients->dk.strides, (std::array<std::int64_t, 4>{4 * 32 * 64, 32 * 64, 64, 1}));
  EXPECT_EQ(graph.k, alike.k);
  EXPECT_EQ(graph.gradients->dq, alike.q);
}

TEST(AttentionGraph, TheForwardAloneHasTheSink) {
  AttentionProblem problem;
  problem.backward = true;
  for (const Sink sink : {Sink::kOffByOne, Sink::kLearned}) {
    problem.sink = sink;
    EXPECT_TRUE(attention_graph(problem, Direction::kForward, {}).sink);
    EXPECT_FALSE(attention_graph(problem, Direction::kBackward, {}).sink);
  }
}

TEST(AttentionGraph, AStrideOfOneElementIsNotLookedAt) {
  AttentionProblem problem;
  problem.heads_q = problem.heads_kv = 4;
  problem.seq_q = problem.seq_kv = 32;
  problem.q.strides = Strides{0, 64, 512, 1};
  const AttentionGraph graph = attention_graph(problem, Direction::kForward, {});
  problem.q.strides = Strides{1 << 20, 64, 512, 1};
  EXPECT_EQ(attention_graph(problem, Direction::kForward, {}), graph);
  EXPECT_EQ(graph.q.strides, (std::array<std::int64_t, 4>{16384, 64, 512, 1}));
}

}  // namespace
}  // namespace scoremod::backend::cudnn
