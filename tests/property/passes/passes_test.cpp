// Properties of simplify, share and differentiate that hold for every program.
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "autodiff/differentiate.hpp"
#include "check/random_program.hpp"
#include "ir/verify.hpp"
#include "passes/share.hpp"
#include "passes/simplify.hpp"
#include "support/any_program.hpp"
#include "support/program_equivalence.hpp"
#include "support/test_seed.hpp"

namespace scoremod::test {
namespace {

constexpr int kPrograms = 1500;
/// Elements at which two programs are compared.
constexpr std::uint64_t kElements = 24;

/// Constants cost nothing, and a fold may need a new one.
std::size_t operation_count(const Program& program) {
  std::size_t count = 0;
  for (const Node& node : program.nodes()) count += node.op == Op::kConstant ? 0 : 1;
  return count;
}

using Pass = Program (*)(const Program&);

void expect_exact(Pass pass, const Program& before) {
  const Program after = pass(before);
  ASSERT_EQ(first_difference(before, after, kElements), "");
  ASSERT_EQ(pass(after), after) << "not idempotent:\n" << before.to_string();
  ASSERT_LE(operation_count(after), operation_count(before)) << before.to_string() << "became\n" << after.to_string();
}

class ExactPass : public testing::TestWithParam<Pass> {};

TEST_P(ExactPass, KeepsEveryValueBitForBitAndIsIdempotentAndNeverGrows) {
  for (int i = 0; i < kPrograms; ++i) {
    const std::uint64_t seed = test_seed() + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    expect_exact(GetParam(), any_program(seed));
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Simplify, ExactPass,
                         testing::Values(static_cast<Pass>([](const Program& p) { return passes::simplify(p); })));
INSTANTIATE_TEST_SUITE_P(Share, ExactPass, testing::Values(passes::share));

TEST(Simplify, DoesSomethingToMostPrograms) {
  int changed = 0;
  for (int i = 0; i < 300; ++i) {
    const Program program = any_program(test_seed() + static_cast<std::uint64_t>(i));
    if (!(passes::simplify(program) == program)) ++changed;
  }
  EXPECT_GT(changed, 100) << "the random programs give the pass too little to do";
}

TEST(Differentiate, ComputesTheForwardValuesAsTheProgramDoes) {
  for (int i = 0; i < kPrograms; ++i) {
    const std::uint64_t seed = test_seed() + static_cast<std::uint64_t>(i);
    checking::RandomProgramOptions options;
    options.continuity = checking::Continuity::kAny;
    options.tame = seed % 2 == 0;
    std::mt19937_64 random(seed);
    const Program program = checking::random_program(random, options);
    const Program derivative = autodiff::differentiate(program);
    ASSERT_EQ(program.value(), derivative.value()) << "seed " << seed;
    ASSERT_EQ(program.keep(), derivative.keep()) << "seed " << seed;
    // Canonical numbering: the forward nodes come first, as they were.
    for (NodeId id = 0; id < program.nodes().size(); ++id) {
      ASSERT_EQ(program.nodes()[id], derivative.nodes()[id]) << "seed " << seed << " node " << id;
    }
    ASSERT_TRUE(ir::is_derivative(derivative));
  }
}

}  // namespace
}  // namespace scoremod::test
