#include "scoremod/call_timer.hpp"

#include <thread>

#include <gtest/gtest.h>

namespace scoremod {
namespace {

TEST(CallTimer, MeasuresTheTimeBetweenStartAndStop) {
  AttentionProblem problem;
  problem.seq_q = problem.seq_kv = 4;
  problem.dim_qk = problem.dim_v = 8;
  const Attention attention = Attention::compile(problem);
  CallTimer timer(attention);
  for (int round = 0; round < 2; ++round) {
    const auto before = std::chrono::steady_clock::now();
    timer.start();
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    const double milliseconds = timer.stop();
    const std::chrono::duration<double, std::milli> around = std::chrono::steady_clock::now() - before;
    EXPECT_GE(milliseconds, 3);
    EXPECT_LE(milliseconds, around.count()) << "a second start() begins anew";
  }
}

}  // namespace
}  // namespace scoremod
