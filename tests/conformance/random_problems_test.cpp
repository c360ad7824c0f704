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

INSTANTIATE_TEST_SUITE_P(Shards, RandomProblems, ::testing::Range(0, kShards));

}  // namespace
}  // namespace scoremod
