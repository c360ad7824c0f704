#include <gtest/gtest.h>

#include "check/random_problem.hpp"
#include "conformance/conformance.hpp"
#include "support/test_seed.hpp"

namespace scoremod {
namespace {

constexpr int kProblems = 320;
constexpr int kShards = 8;

/// Every backend against the oracle over random problems, in shards that ctest can run side by side.
class RandomProblems : public ::testing::TestWithParam<int> {};

TEST_P(RandomProblems, ConformToTheOracle) {
  for (int number = GetParam(); number < kProblems; number += kShards) {
    const std::uint64_t seed = test::test_seed() + static_cast<std::uint64_t>(number);
    checking::RandomProblemOptions options;
    // Most problems are small; one in eight crosses several tiles both ways.
    if (number % 8 == 0) options.max_scores = 40000;
    options.shifted_value_probability = 0.2;
    options.row_class_probability = 0.2;
    options.one_query_probability = 0.1;
    options.few_rows_probability = 0.15;
    options.lengths_probability = options.sink_probability = 0.2;
    options.dropout_probability = options.max_logit_probability = 0.2;
    options.ragged_probability = options.paged_probability = 0.2;
    options.gradient_layout_probability = options.output_dtype_probability = 0.2;
    checking::CheckCase made = checking::random_problem(seed, options);
    made.name =
        "random problem " + std::to_string(number) + " (SCOREMOD_TEST_SEED=" + std::to_string(test::test_seed()) + ")";
    for (const std::string& backend : test::tested_backends()) {
      test::expect_conforms(backend, made);
    }
    if (HasFailure()) return;
  }
}

/// An output of 0.17 is the sum of 200 values near 1. float32 rounded it by more than the band, while the plain
/// evaluation's rounding cancelled. (Problem 36 of seed 5016000.)
TEST(FoundProblems, AnOutputThatCancelsConforms) {
  checking::CheckCase made;
  AttentionProblem& problem = made.problem;
  problem.batch = 2;
  problem.heads_q = 9;
  problem.heads_kv = 3;
  problem.seq_q = problem.dim_qk = problem.dim_v = 1;
  problem.seq_kv = 200;
  problem.dtype = DType::kF32;
  problem.k = problem.v = problem.o = {Layout::kSBHD, {}};
  problem.scale = 1;
  problem.stats = problem.index_offsets = true;
  problem.program = Program::parse(
      "table x0: f32 rank 1\n"
      "let %0 = min(gelu_tanh(sigmoid(score)) * 0.98288286, x0[15])\n"
      "let %1 = gelu(%0)\n"
      "value = select(q_idx >= b, %1 * softplus(%0) * %0 + %1, -inf)");
  problem.operands = {{"x0", DType::kF16, {12}, {}}};
  made.fills = {{"x0", {FillKind::kUniform, -2, 2}}};
  made.call.offsets = {2017, 555, 2471, 659};
  made.seed = 5016036;
  for (const std::string& backend : test::tested_backends()) test::expect_conforms(backend, made);
}

INSTANTIATE_TEST_SUITE_P(Shards, RandomProblems, ::testing::Range(0, kShards));

}  // namespace
}  // namespace scoremod
