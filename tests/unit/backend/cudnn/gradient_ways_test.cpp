#include "backend/cudnn/gradient_ways.hpp"

#include <array>

#include <gtest/gtest.h>

namespace scoremod::backend::cudnn {
namespace {

TEST(GradientWays, TakesCudnnsWhereItsOperandIsTheOnlyOneAskedFor) {
  int memory = 0;
  void* const wanted = &memory;
  GradientWays ways;
  ways.operands = {0, 2};
  ways.fused = 2;
  EXPECT_TRUE(ways.is_fused(std::array<void*, 3>{nullptr, nullptr, wanted}));
  EXPECT_FALSE(ways.is_fused(std::array<void*, 3>{wanted, nullptr, wanted}));
  EXPECT_FALSE(ways.is_fused(std::array<void*, 3>{wanted, nullptr, nullptr}));
  EXPECT_FALSE(ways.is_fused(std::array<void*, 3>{nullptr, nullptr, nullptr}));
  ways.fused.reset();
  EXPECT_FALSE(ways.is_fused(std::array<void*, 3>{nullptr, nullptr, wanted}));
}

TEST(GradientWays, NeedsThePassUnlessCudnnWritesTheOnlyGradient) {
  GradientWays ways;
  EXPECT_FALSE(ways.needs_pass());
  ways.operands = {1};
  EXPECT_TRUE(ways.needs_pass());
  ways.fused = 1;
  EXPECT_FALSE(ways.needs_pass());
  ways.operands = {0, 1};
  EXPECT_TRUE(ways.needs_pass());
}

}  // namespace
}  // namespace scoremod::backend::cudnn
