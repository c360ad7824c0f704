#include "compiler/compiled_problem.hpp"

#include <gtest/gtest.h>

#include "compiler/pipeline.hpp"

namespace scoremod::compiler {
namespace {

AttentionProblem problem_of(std::int64_t seq_q, std::int64_t seq_kv) {
  AttentionProblem problem;
  problem.seq_q = seq_q;
  problem.seq_kv = seq_kv;
  problem.backward = true;
  problem.program =
      Program::parse("operand x: f32 [kv_idx]\nvalue = score + x\nkeep = kv_idx <= q_idx + 40 & kv_idx + 3 > q_idx");
  problem.operands = {{"x", DType::kF32, {seq_kv}, {}}};
  return problem;
}

TEST(Resized, AMaskKeepsWhatItsProgramKeeps) {
  const CompiledProblem large = compile(problem_of(60, 100));
  ASSERT_TRUE(large.forward.mask.band);
  // 40 is the difference of the lengths, and the band follows the last query and key.
  ASSERT_EQ(large.forward.mask.band->anchor, masks::BandAnchor::kBottomRight);
  const CompiledProblem small = resized(large, problem_of(10, 20));
  for (const masks::MaskClass& mask : {small.forward.mask, small.backward->mask}) {
    ASSERT_TRUE(mask.band);
    const masks::Band band = masks::top_left(*mask.band, 10, 20);
    EXPECT_EQ(band.right, 40);
    EXPECT_EQ(band.left, 2);
  }
}

TEST(Resized, ReductionsHaveTheNewSizes) {
  const CompiledProblem small = resized(compile(problem_of(60, 100)), problem_of(10, 20));
  EXPECT_EQ(small.backward->reductions, compile(problem_of(10, 20)).backward->reductions);
  EXPECT_EQ(small.problem, problem_of(10, 20));
}

}  // namespace
}  // namespace scoremod::compiler
