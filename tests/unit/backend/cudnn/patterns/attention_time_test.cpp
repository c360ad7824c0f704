#include "backend/cudnn/patterns/attention_time.hpp"

#include <tuple>

#include <gtest/gtest.h>

namespace scoremod::backend::cudnn {
namespace {

/// The shape that patterns were timed at.
AttentionProblem timed_problem() {
  AttentionProblem problem;
  problem.batch = 4;
  problem.heads_q = problem.heads_kv = 16;
  problem.seq_q = problem.seq_kv = 4096;
  problem.dim_qk = problem.dim_v = 128;
  problem.dtype = DType::kBF16;
  return problem;
}

ModifierNode band(bool left, std::int64_t bound) {
  ModifierNode node;
  node.mode = Mode::kBand;
  node.band = BandEnd{left, bound};
  return node;
}

ModifierGraph bands(std::vector<ModifierNode> nodes) {
  ModifierGraph graph;
  graph.nodes = std::move(nodes);
  return graph;
}

ModifierGraph unary(Mode mode) {
  ModifierNode node;
  node.mode = mode;
  return bands({node});
}

double milliseconds(const AttentionProblem& problem, Direction direction, const ModifierGraph& graph,
                    const DeviceRates& rates = {}) {
  return attention_time(problem, direction, {graph, {}, {}, {}}, rates, true).milliseconds;
}

TEST(AttentionTime, FallsWithTheTilesThatABandSkips) {
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    const AttentionProblem problem = timed_problem();
    const double full = milliseconds(problem, direction, {});
    const double causal = milliseconds(problem, direction, bands({band(false, 0)}));
    const double window = milliseconds(problem, direction, bands({band(false, 0), band(true, 512)}));
    EXPECT_GT(full, 1.5 * causal);
    EXPECT_GT(causal, 2 * window);
  }
}

/// cuDNN's backward runs all tiles then (band.right.shifted).
TEST(AttentionTime, OfABackwardDoesNotFallWithAShiftedDiagonal) {
  const ModifierGraph shifted = bands({band(false, -3)});
  const AttentionProblem problem = timed_problem();
  EXPECT_EQ(milliseconds(problem, Direction::kBackward, shifted), milliseconds(problem, Direction::kBackward, {}));
  EXPECT_LT(milliseconds(problem, Direction::kForward, shifted), milliseconds(problem, Direction::kForward, {}));
}

TEST(AttentionTime, GrowsWithWorkAndFallsWithTheDevice) {
  const AttentionProblem base = timed_problem();
  const double once = milliseconds(base, Direction::kForward, {});
  AttentionProblem larger = base;
  larger.batch = 8;
  EXPECT_NEAR(milliseconds(larger, Direction::kForward, {}), 2 * once, 0.02 * once);
  larger = base;
  larger.dim_qk = larger.dim_v = 256;
  EXPECT_GT(milliseconds(larger, Direction::kForward, {}), 1.5 * once);
  DeviceRates half;
  half.multiprocessors = 66;
  EXPECT_GT(milliseconds(base, Direction::kForward, {}, half), 1.9 * once);
  // One row and one head leave all but one multiprocessor idle.
  AttentionProblem small = base;
  small.batch = small.heads_q = small.heads_kv = small.seq_q = 1;
  EXPECT_GT(milliseconds(small, Direction::kForward, {}), once / 64 / 32);
}

/// As an H200 took. More queries run in tiles of rows, which are mostly unused.
TEST(AttentionTime, OfOneQueryIsWhatMemoryTakes) {
  AttentionProblem problem = timed_problem();
  problem.heads_q = 32;
  problem.heads_kv = 8;
  problem.seq_q = 1;
  for (const auto& [batch, keys, took] : {std::tuple{16, 8192, 0.1262}, {4, 32768, 0.1315}}) {
    problem.batch = batch;
    problem.seq_kv = keys;
    problem.seq_q = 1;
    EXPECT_NEAR(milliseconds(problem, Direction::kForward, {}), took, 0.03 * took) << keys;
    problem.seq_q = 4;
    EXPECT_GT(milliseconds(problem, Direction::kForward, {}), 2 * took) << keys;
  }
}

TEST(AttentionTime, OrdersModifiersAsTheyWereTimed) {
  const AttentionProblem problem = timed_problem();
  const double plain = milliseconds(problem, Direction::kForward, {});
  const double tanh = milliseconds(problem, Direction::kForward, unary(Mode::kTanh));
  const double sigmoid = milliseconds(problem, Direction::kForward, unary(Mode::kSigmoid));
  EXPECT_LT(plain, tanh);
  EXPECT_LT(tanh, sigmoid);
}

TEST(AttentionTime, SaysWhatItIsMadeOf) {
  const AttentionProblem problem = timed_problem();
  const auto source = [&](const ModifierGraph& graph, const DeviceRates& rates, bool timed) {
    return attention_time(problem, Direction::kForward, {graph, {}, {}, {}}, rates, timed).source;
  };
  EXPECT_EQ(source(unary(Mode::kTanh), {}, true), "scaled from measured patterns");
  EXPECT_NE(source(unary(Mode::kMod), {}, true).find("1 of 1 kinds of steps assumed"), std::string::npos);
  DeviceRates other;
  other.multiprocessors = 114;
  EXPECT_NE(source({}, other, true).find("scaled to this device"), std::string::npos);
  EXPECT_NE(source({}, other, false).find("measured on sm_90"), std::string::npos);
}

}  // namespace
}  // namespace scoremod::backend::cudnn
