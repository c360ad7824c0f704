#include "masks/difference_logic.hpp"

#include <vector>

#include <gtest/gtest.h>

namespace scoremod::masks {
namespace {

using Variable = DifferenceLogic::Variable;
constexpr Variable kZero = DifferenceLogic::kZero;

TEST(DifferenceLogic, AVariableMayBeAnythingBeyondItsOpenEnds) {
  DifferenceLogic logic;
  const Variable any = logic.variable({}, {});
  const Variable from_zero = logic.variable(0, {});
  const Variable to_five = logic.variable({}, 5);
  EXPECT_FALSE(logic.never(logic.at_most(any, kZero, -1'000'000)));
  EXPECT_FALSE(logic.never(logic.at_most(kZero, any, -1'000'000)));
  EXPECT_TRUE(logic.never(logic.at_most(from_zero, kZero, -1)));
  EXPECT_FALSE(logic.never(logic.at_most(kZero, from_zero, -1'000'000)));
  EXPECT_TRUE(logic.never(logic.at_most(kZero, to_five, -6)));
  EXPECT_FALSE(logic.never(logic.at_most(to_five, kZero, -1'000'000)));
}

TEST(DifferenceLogic, NoValueOfAnEmptyRangeSatisfiesAnything) {
  DifferenceLogic logic;
  const Variable none = logic.variable(5, 3);
  EXPECT_TRUE(logic.never(logic.at_most(none, kZero, 4)));
  EXPECT_TRUE(logic.never(logic.at_most(kZero, none, -5)));
}

TEST(DifferenceLogic, ProvesNothingOnceItsAllowanceIsSpent) {
  DifferenceLogic logic;
  const Variable x = logic.variable({}, {});
  const FormulaRef contradiction = logic.both(logic.at_most(x, kZero, 0), logic.at_most(kZero, x, -2));
  EXPECT_TRUE(logic.never(contradiction));
  EXPECT_EQ(logic.atoms(contradiction).size(), 4u);
  // Both say whether an odd number of 24 formulas is true, which 2^24 cases would show.
  std::vector<FormulaRef> formulas;
  for (int i = 0; i < 11; ++i) formulas.push_back(logic.at_most(logic.variable({}, {}), kZero, 0));
  for (std::uint32_t key = 0; key < 13; ++key) formulas.push_back(logic.free(key));
  FormulaRef up = formulas.front(), down = formulas.back();
  for (std::size_t i = 1; i < formulas.size(); ++i) {
    up = logic.differ(up, formulas[i]);
    down = logic.differ(down, formulas[formulas.size() - 1 - i]);
  }
  EXPECT_FALSE(logic.never(logic.differ(up, down)));
  EXPECT_GE(logic.work(), 20'000'000);
  EXPECT_FALSE(logic.never(contradiction));
  EXPECT_TRUE(logic.atoms(contradiction).empty());
}

}  // namespace
}  // namespace scoremod::masks
