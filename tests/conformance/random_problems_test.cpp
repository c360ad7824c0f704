#include <random>

#include <gtest/gtest.h>

#include "conformance/conformance.hpp"
#include "support/random_problem.hpp"
#include "support/random_program.hpp"

namespace scoremod {
namespace {

constexpr int kProblems = 320;
constexpr int kShards = 8;

/// Every backend against the oracle over random problems, in shards that ctest can run side by side.
class RandomProblems : public ::testing::TestWithParam<int> {};

TEST_P(RandomProblems, ConformToTheOracle) {
  for (int number = GetParam(); number < kProblems; number += kShards) {
    const std::uint64_t seed = test::test_seed() + static_cast<std::uint64_t>(number);
    std::mt19937_64 random(seed);
    // Most problems are small; one in eight crosses several tiles both ways.
    test::RandomProblem made = test::random_problem(random, number % 8 == 0 ? 40000 : 5000);
    const std::string name =
        "random problem " + std::to_string(number) + " (SCOREMOD_TEST_SEED=" + std::to_string(test::test_seed()) + ")";
    for (const std::string& backend : test::tested_backends()) {
      test::expect_conforms(backend, {name, made.problem, made.call, made.fills, seed});
    }
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Shards, RandomProblems, ::testing::Range(0, kShards));

}  // namespace
}  // namespace scoremod
