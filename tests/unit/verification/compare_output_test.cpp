#include "verification/compare_output.hpp"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace scoremod::verification {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

OutputCheck check_of(DType dtype, double found, double oracle, float plain, double band, const char* name = "o") {
  return compare_output({name, dtype, {1}, {1}}, {{found}, {oracle}, {plain}, {band}});
}

/// Numbers below the normal ones are rounded to a grid, so that a band relative to them is too narrow.
TEST(CompareOutput, AllowsAsMuchMoreAsUnderflowMayRound) {
  const std::pair<DType, double> grids[] = {{DType::kF32, 0x1p-150},
                                            {DType::kF16, 0x1p-25},
                                            {DType::kBF16, 0x1p-134},
                                            {DType::kE4M3, 0x1p-10},
                                            {DType::kE5M2, 0x1p-17}};
  for (const auto& [dtype, half_step] : grids) {
    const OutputCheck check = check_of(dtype, 9 * half_step, 0, 0, 2 * half_step);
    EXPECT_EQ(check.max.band, 3 * half_step);
    EXPECT_EQ(check.max.tolerance(), 9 * half_step);
    EXPECT_TRUE(check.passed());
    EXPECT_FALSE(check_of(dtype, 9.5 * half_step, 0, 0, 2 * half_step).passed());
  }
}

TEST(CompareOutput, TakesTwiceThePlainErrorAndTheBand) {
  const OutputCheck check = check_of(DType::kF32, 1.0, 1.5, 1.25F, 0.125);
  EXPECT_EQ(check.l2.plain_error, 0.25);
  EXPECT_EQ(check.l2.scale, 1.5);
  EXPECT_TRUE(check.passed());
  const OutputCheck wrong = check_of(DType::kF32, 0.75, 1.5, 1.25F, 0.125);
  EXPECT_EQ(wrong.problems.size(), 2u) << "in both norms";
  EXPECT_EQ(wrong.wrong_kind, 0);
}

TEST(CompareOutput, LeavesOutWhatCannotBeCompared) {
  for (const OutputCheck& check :
       {check_of(DType::kF32, 5, 1, std::numeric_limits<float>::infinity(), 0),
        check_of(DType::kF32, 5, kInfinity, 1, 0), check_of(DType::kF32, 5, 1, 1, kInfinity)}) {
    EXPECT_EQ(check.left_out, 1);
    EXPECT_TRUE(check.passed());
  }
}

TEST(CompareOutput, FindsNumbersOfTheWrongKind) {
  const double nan = std::nan("");
  EXPECT_EQ(check_of(DType::kF32, nan, 1, 1, 0).wrong_kind, 1);
  EXPECT_EQ(check_of(DType::kF32, nan, 1, 1, 0).problems.size(), 1u);
  EXPECT_EQ(check_of(DType::kF32, 1, nan, std::nanf(""), 0).wrong_kind, 1);
  EXPECT_EQ(check_of(DType::kF32, nan, nan, std::nanf(""), 0).wrong_kind, 0);
  EXPECT_EQ(check_of(DType::kF32, nan, kInfinity, std::numeric_limits<float>::infinity(), 0).wrong_kind, 0);
  EXPECT_EQ(check_of(DType::kF32, nan, nan, std::nanf(""), 0, "lse").wrong_kind, 0);
  const auto lse = [](double found) {
    return check_of(DType::kF32, found, -kInfinity, -std::numeric_limits<float>::infinity(), 0, "lse").wrong_kind;
  };
  EXPECT_EQ(lse(-kInfinity), 0);
  EXPECT_EQ(lse(kInfinity), 1);
  EXPECT_EQ(lse(nan), 1);
}

}  // namespace
}  // namespace scoremod::verification
