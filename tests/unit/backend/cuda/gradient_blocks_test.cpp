#include "backend/cuda/operand_gradients/gradient_blocks.hpp"

#include <gtest/gtest.h>

#include "compiler/pipeline.hpp"

namespace scoremod::backend::cuda {
namespace {

AttentionProblem problem_of(const std::string& text, std::int64_t seq_q, std::int64_t seq_kv) {
  AttentionProblem problem;
  problem.batch = 2;
  problem.heads_q = problem.heads_kv = 16;
  problem.seq_q = seq_q;
  problem.seq_kv = seq_kv;
  problem.dtype = DType::kBF16;
  problem.backward = problem.stats = true;
  problem.program = Program::parse(text);
  return problem;
}

bool keeps(const masks::Band& band, std::int64_t d) {
  return (!band.left || d >= -*band.left) && (!band.right || d <= *band.right);
}

TEST(GradientBlocks, NeedAllKeysThatTheBandKeeps) {
  for (const char* keep : {"kv_idx <= q_idx", "kv_idx < q_idx & kv_idx + 40 >= q_idx", "kv_idx > q_idx + 7",
                           "kv_idx + 20 >= q_idx & kv_idx <= q_idx + 20"}) {
    const compiler::CompiledProblem compiled =
        compiler::compile(problem_of(std::string("value = score\nkeep = ") + keep, 70, 200));
    ASSERT_TRUE(compiled.backward->mask.band) << keep;
    const masks::Band band = masks::top_left(*compiled.backward->mask.band, 70, 200);
    bool skipped = false;
    for (const auto& [query_offset, key_offset] : {std::pair{0, 0}, std::pair{33, 0}, std::pair{0, 90}}) {
      for (std::int64_t q = 0; q < 70; q += 13) {
        for (std::int64_t k = 0; k < 200; k += 60) {
          const KeyRange queries{q, std::min<std::int64_t>(q + 13, 70)}, keys{k, std::min<std::int64_t>(k + 60, 200)};
          const KeyRange needed = needed_keys(compiled, query_offset, key_offset, queries, keys);
          skipped |= needed.empty() || needed.first > keys.first || needed.end < keys.end;
          if (!needed.empty()) {
            EXPECT_GE(needed.first, keys.first);
            EXPECT_LE(needed.end, keys.end);
            EXPECT_EQ((needed.first - keys.first) % 32, 0);
          }
          for (std::int64_t i = queries.first; i < queries.end; ++i) {
            for (std::int64_t j = keys.first; j < keys.end; ++j) {
              if (!keeps(band, j + key_offset - i - query_offset)) continue;
              EXPECT_TRUE(j >= needed.first && j < needed.end) << keep << " at " << i << ", " << j;
            }
          }
        }
      }
    }
    EXPECT_TRUE(skipped) << keep;
  }
}

TEST(GradientBlocks, DoNotGrowWithTheScores) {
  for (const std::int64_t length : {1, 77, 4096, 1 << 20}) {
    AttentionProblem problem = problem_of("operand x: f32 [h, q_idx, kv_idx]\nvalue = score + x", length, length);
    problem.operands = {{"x", DType::kBF16, {16, length, length}, {}}};
    const compiler::CompiledProblem compiled = compiler::compile(problem);
    const std::vector<std::uint32_t> operands{0};
    const std::vector<GradientTarget> targets = gradient_targets(compiled, operands);
    ASSERT_EQ(targets[0].sum, GradientSum::kBlock);
    const GradientBlocks blocks = gradient_blocks(problem, targets);
    EXPECT_GE(blocks.rows, 1);
    EXPECT_LE(blocks.rows, length);
    EXPECT_GE(blocks.columns, std::min<std::int64_t>(length, 256));
    EXPECT_LE(blocks.scores(), kMaxBlockScores);
    EXPECT_LE(blocks.sums(targets[0]), kMaxBlockSums);
  }
}

TEST(GradientBlocks, ChooseTheSumThatTheAxesAskFor) {
  AttentionProblem problem = problem_of(
      "operand full: f32 [b, h, q_idx, kv_idx]\noperand heads: f32 [h, q_idx, kv_idx]\noperand keys: f32 [kv_idx]\n"
      "operand unread: f32 [h]\ntable bias: f32 rank 1\n"
      "value = score + full + heads + keys + bias[q_idx - kv_idx]",
      5, 9);
  problem.operands = {{"full", DType::kF32, {2, 16, 5, 9}, {}},
                      {"heads", DType::kF32, {16, 5, 9}, {}},
                      {"keys", DType::kF32, {9}, {}},
                      {"unread", DType::kF32, {16}, {}},
                      {"bias", DType::kF32, {7}, {}}};
  const std::vector<std::uint32_t> operands{0, 1, 2, 3, 4};
  const std::vector<GradientTarget> targets = gradient_targets(compiler::compile(problem), operands);
  const std::vector<GradientSum> expected{GradientSum::kStored, GradientSum::kBlock, GradientSum::kReduced,
                                          GradientSum::kZero, GradientSum::kTable};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(targets[i].sum, expected[i]) << i;
    EXPECT_FALSE(targets[i].exact) << i;
  }
  problem.deterministic = true;
  const std::vector<GradientTarget> deterministic = gradient_targets(compiler::compile(problem), operands);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    // To the others one thread adds at a time.
    const bool shared = expected[i] == GradientSum::kReduced || expected[i] == GradientSum::kTable;
    EXPECT_EQ(deterministic[i].sum, expected[i]) << i;
    EXPECT_EQ(deterministic[i].exact, shared) << i;
  }
}

}  // namespace
}  // namespace scoremod::backend::cuda
