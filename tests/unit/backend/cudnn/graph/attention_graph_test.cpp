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
  EXPECT_EQ(graph.gradients->dk.strides, (std::array<std::int64_t, 4>{8192, 2048, 64, 1}));
  EXPECT_EQ(graph.k, alike.k);
  EXPECT_EQ(graph.gradients->dq, alike.q);
}

AttentionProblem varlen_problem(std::int64_t tokens) {
  AttentionProblem problem;
  problem.batch = 2;
  problem.heads_q = problem.heads_kv = 4;
  problem.seq_q = problem.seq_kv = 32;
  problem.tokens_q = problem.tokens_kv = tokens;
  problem.q = problem.k = problem.v = problem.o = {Layout::kTHD, {}};
  problem.backward = true;
  return problem;
}

TEST(AttentionGraph, OfVarlenTensorsServesAnyNumberOfTokens) {
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    const AttentionGraph graph = attention_graph(varlen_problem(50), direction, {});
    EXPECT_EQ(attention_graph(varlen_problem(60), direction, {}), graph);
    EXPECT_EQ(graph.places, (SequencePlaces{true, true, 0, 0}));
    EXPECT_EQ(graph.q.dims, (std::array<std::int64_t, 4>{2, 4, 32, 64}));
    EXPECT_EQ(graph.q.strides, (std::array<std::int64_t, 4>{8192, 64, 256, 1}));
  }
  AttentionProblem queries = varlen_problem(50);
  queries.tokens_kv.reset();
  queries.k = queries.v = {};
  EXPECT_EQ(attention_graph(queries, Direction::kForward, {}).places, (SequencePlaces{true, false, 0, 0}));
}

TEST(AttentionGraph, HasThePoolOfAPagedKVCache) {
  AttentionProblem problem;
  problem.batch = 2;
  problem.heads_q = problem.heads_kv = 4;
  problem.seq_q = 1;
  problem.seq_kv = 40;
  problem.paged = PagedKeys{16, 7, 5};
  problem.k.layout = Layout::kBHSD;
  const AttentionGraph graph = attention_graph(problem, Direction::kForward, {});
  EXPECT_EQ(graph.places, (SequencePlaces{false, false, 3, 40}));
  EXPECT_EQ(graph.k.dims, (std::array<std::int64_t, 4>{7, 4, 16, 64}));
  EXPECT_EQ(graph.k.strides, (std::array<std::int64_t, 4>{4096, 1024, 64, 1}));
  EXPECT_EQ(graph.v.strides, (std::array<std::int64_t, 4>{4096, 64, 256, 1}));
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
