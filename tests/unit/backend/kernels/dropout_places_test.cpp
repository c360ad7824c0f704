// Dropout of a part of a sequence by the kernels on a host: keys that say where its queries and keys are in the whole.

#include <algorithm>
#include <array>
#include <cstring>

#include <gtest/gtest.h>

#include "backend/kernels/hopper/family.hpp"
#include "problem/implied_operands.hpp"
#include "support/attention_kernels_cases.hpp"
#include "support/check_report.hpp"
#include "support/emulated_attention.hpp"

namespace scoremod::backend::kernels {
namespace {

HopperShape hopper_shape(const AttentionProblem& problem, Direction direction) {
  return hopper_shapes(problem, direction).front();
}

checking::CheckCase placed_case() {
  std::vector<checking::CheckCase> cases = test::attention_kernels_cases(true);
  return *std::ranges::find(cases, "dropout by keys and places", &checking::CheckCase::name);
}

/// Each batch has its own; four keys of the first and the last share an evaluation of Philox in the whole, too.
ProblemInputs placed_inputs(const AttentionProblem& problem) {
  constexpr std::array<std::array<std::uint32_t, 10>, 3> kWords{{{1, 2, 3, 0, 5, 7, 30, 8, 12, 40},
                                                                 {1, 2, 4, 1, 2, 5, 11, 3, 9, 21},
                                                                 {9, 8, 5, 2, 1000, 0, 0, 4'000'000'000, 0, 0}}};
  ProblemInputs inputs = random_inputs(problem);
  const auto keys = std::ranges::find(inputs.operands, problem::kDropoutKeys, &OwnedOperand::name);
  EXPECT_EQ(keys->bytes.size(), sizeof(kWords));
  std::memcpy(keys->bytes.data(), kWords.data(), sizeof(kWords));
  return inputs;
}

TEST(DropoutPlacesOfKernels, AreRightInBothFamilies) {
  const checking::CheckCase test = placed_case();
  ASSERT_EQ(test.problem.batch, 3);
  const ProblemInputs inputs = placed_inputs(test.problem);
  test::expect_right(test::check_emulated(test, inputs, portable_shape));
  test::expect_right(test::check_emulated(test, inputs, hopper_shape));
}

TEST(DropoutPlacesOfKernels, FaultsAreSeen) {
  const checking::CheckCase test = placed_case();
  const ProblemInputs inputs = placed_inputs(test.problem);
  const test::EmulatedLaunches::Fault always{"(first | tokens | step) % 4u == 0", "true"},
      none{"queries.at((unsigned)q + offset_q)", "(unsigned)q + offset_q"};
  EXPECT_FALSE(test::check_emulated(test, inputs, portable_shape, {always, {}, {}}).passed());
  EXPECT_FALSE(test::check_emulated(test, inputs, portable_shape, {{}, none, {}}).passed());
}

}  // namespace
}  // namespace scoremod::backend::kernels
