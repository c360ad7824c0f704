#include "verification/output_error.hpp"

#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "scoremod/output_check.hpp"

namespace scoremod::verification {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::size_t kRows = 4000, kWidth = 8;

/// An output in f16 with a vector for each row, and its expected judgement.
struct Case {
  Case() {
    std::mt19937 bits(1);
    for (std::size_t row = 0; row < kRows; ++row) {
      lse.push_back(row < 20 ? -200 - static_cast<double>(row) : row < 40 ? 150.0 : row < 50 ? -kInfinity : 3.0);
      for (std::size_t d = 0; d < kWidth; ++d) {
        const double number = static_cast<double>(bits() % 2001) / 1000 - 1;
        oracle.push_back(lse[row] == -kInfinity ? 0 : number);
        plain.push_back(static_cast<float>(oracle.back() * (1 + 0x1p-13)));
      }
    }
    found = oracle;
    plain_lse.assign(lse.begin(), lse.end());
  }

  OutputError judge() const {
    const problem::StridedTensor tensor{
        "o", DType::kF16, {static_cast<std::int64_t>(kRows), static_cast<std::int64_t>(kWidth)}, {}};
    return output_error(tensor, found, oracle, plain, row_classes(lse, plain_lse, DType::kF16));
  }

  std::vector<double> lse, oracle, found;
  std::vector<float> plain_lse, plain;
};

TEST(RowClasses, AreAllRowsAndThenThoseThatDiffer) {
  Case rows;
  rows.plain_lse[0] += 1;  // too ill-conditioned to be judged by itself
  const auto classes = row_classes(rows.lse, rows.plain_lse, DType::kF16);
  ASSERT_EQ(classes.size(), 5);
  EXPECT_EQ(classes[0].name, "");
  EXPECT_EQ(classes[0].rows.size(), kRows);
  EXPECT_EQ(classes[0].largest_lse, 219);
  EXPECT_EQ(classes[1].name, "rows without a key");
  EXPECT_EQ(classes[1].rows.size(), 10);
  EXPECT_EQ(classes[2].rows.size(), 19);
  EXPECT_EQ(classes[3].rows.size(), 20);
  EXPECT_EQ(classes[4].largest_lse, 3);
  EXPECT_EQ(row_classes({1, 2}, {1, 2}, DType::kF16).size(), 1) << "all of one class";
  const auto at_the_limits = row_classes({100, 100.5, -100, -100.5}, {100, 100.5f, -100, -100.5f}, DType::kF16);
  ASSERT_EQ(at_the_limits.size(), 4);
  EXPECT_EQ(at_the_limits[1].name, "rows whose LSE is below -100");
  EXPECT_EQ(at_the_limits[2].name, "rows whose LSE is above 100");
  EXPECT_EQ(at_the_limits[3].rows.size(), 2);
}

TEST(OutputError, IsRightForTheOracleItself) {
  EXPECT_TRUE(Case().judge().right());
  Case rounded;
  for (double& value : rounded.found) value *= 1 + 0x1p-12;
  EXPECT_TRUE(rounded.judge().right());
}

TEST(OutputError, FindsASmallErrorOfAFewRows) {
  Case wrong;
  for (std::size_t i = 0; i < 20 * kWidth; ++i) wrong.found[i] *= 1.002;
  const OutputError error = wrong.judge();
  EXPECT_FALSE(error.right());
  EXPECT_EQ(error.rows, "rows whose LSE is below -100");
  EXPECT_NEAR(error.error, 0.002, 0.0005);
}

TEST(OutputError, FindsWhatIsNotZeroInRowsWithoutAKey) {
  Case wrong;
  for (std::size_t i = 40 * kWidth; i < 50 * kWidth; ++i) wrong.found[i] = 0.01;
  EXPECT_EQ(wrong.judge().rows, "rows without a key");
  wrong.found[45 * kWidth] = std::nan("");
  EXPECT_EQ(wrong.judge().rows, "rows without a key");
  EXPECT_TRUE(std::isnan(wrong.judge().error));
}

/// There is nothing for an error to be relative to: the norm is taken for 1.
TEST(OutputError, OfZerosIsJudgedAsThatOfOnes) {
  const problem::StridedTensor tensor{"gradient", DType::kF32, {1}, {1}};
  const auto of = [&](double oracle, double error) {
    return output_error(tensor, {oracle + error}, {oracle}, {static_cast<float>(oracle)},
                        row_classes({1}, {1}, DType::kF32));
  };
  EXPECT_DOUBLE_EQ(of(0, 0.25).tolerance, of(1, 0.25).tolerance);
  EXPECT_DOUBLE_EQ(of(0, 0.25).error, of(1, 0.25).error);
  EXPECT_FALSE(of(0, 0.25).right());
}

/// A second judgement, by an evaluation that is off as far as backends may be, decides about these.
TEST(OutputError, SaysWhereNothingButRoundingIsLeft) {
  const std::vector<double> oracle{1e-17, -2e-17};
  const problem::StridedTensor tensor{"gradient", DType::kF32, {2}, {1}};
  const auto all = row_classes({1}, {1}, DType::kF32);
  const auto of = [&](double found, float plain) {
    return output_error(tensor, {found, 1e-9}, oracle, {plain, plain}, all);
  };
  EXPECT_TRUE(of(5e-9, 1e-9F).right());
  EXPECT_FALSE(of(5e-8, 1e-9F).right());
  EXPECT_TRUE(of(5e-8, 1e-9F).cancels);
  EXPECT_TRUE(of(5e-8, 1e-8F).right());
  EXPECT_FALSE(of(std::nan(""), 1e-8F).right());
  EXPECT_FALSE(output_error(tensor, {2, 1}, {1, 1}, {1 + 1e-7F, 1}, all).cancels);
}

/// Most of the error is in a few rows, such as those in which one key has nearly all the weight.
TEST(OutputError, AllowsAClassMoreOfWhichFewRowsHaveTheError) {
  const auto of = [](std::size_t rows_with_error, double times) {
    Case rows;
    rows.found = rows.oracle;
    rows.plain.assign(rows.oracle.begin(), rows.oracle.end());
    for (std::size_t i = 20 * kWidth; i < (20 + rows_with_error) * kWidth; ++i) {
      rows.plain[i] += 0.01F;
      rows.found[i] += 0.01 * times;
    }
    for (std::size_t i = 50 * kWidth; i < kRows * kWidth; ++i) rows.plain[i] += 0.05F;
    return rows.judge();
  };
  EXPECT_TRUE(of(3, 6).right());
  EXPECT_FALSE(of(3, 10).right());
  EXPECT_FALSE(of(20, 6).right());
}

/// By chance the plain evaluation's error of few numbers is small.
TEST(OutputError, AllowsFewNumbersMoreThanMany) {
  const auto of = [](std::size_t count, double error) {
    const std::vector<double> oracle(count, 1.0), found(count, 1 + error);
    const std::vector<float> plain(count, 1.001F);
    const problem::StridedTensor tensor{"d_x", DType::kF32, {static_cast<std::int64_t>(count)}, {1}};
    return output_error(tensor, found, oracle, plain, row_classes({1}, {1}, DType::kF32)).right();
  };
  EXPECT_TRUE(of(15, 0.007));
  EXPECT_FALSE(of(15, 0.009));
  EXPECT_TRUE(of(16, 0.0019));
  EXPECT_FALSE(of(16, 0.003));
}

TEST(OutputError, TellsWhatCancelsToZeroFromWhatHasNoTerms) {
  const std::vector<double> zeros{0, 0};
  const problem::StridedTensor tensor{"dq", DType::kF32, {2}, {1}};
  const auto all = row_classes({1}, {1}, DType::kF32);
  EXPECT_TRUE(output_error(tensor, {3e-6, 1e-6}, zeros, {1e-6f, 1e-6f}, all).right());
  EXPECT_FALSE(output_error(tensor, {std::nan(""), 1e-6}, zeros, {1e-6f, 1e-6f}, all).right());
  EXPECT_TRUE(output_error(tensor, zeros, zeros, {0, 0}, all).right());
  EXPECT_FALSE(output_error(tensor, {3e-6, 1e-6}, zeros, {0, 0}, all).right());
}

TEST(LseError, IsAbsoluteAndExactForInfinities) {
  const Case rows;
  const auto classes = row_classes(rows.lse, rows.plain_lse, DType::kF16);
  const auto judge = [&](std::size_t row, double found) {
    std::vector<double> lse = rows.lse;
    lse[row] = found;
    return lse_error(lse, rows.lse, rows.plain_lse, DType::kF16, classes);
  };
  EXPECT_TRUE(judge(0, -200 + 0x1p-12).right());
  const OutputError off = judge(0, -200 + 0x1p-8);
  EXPECT_FALSE(off.right());
  EXPECT_EQ(off.rows, "rows whose LSE is below -100");
  EXPECT_FALSE(judge(3000, 3.01).right());
  EXPECT_FALSE(judge(45, -1e30).right());
  EXPECT_FALSE(judge(45, kInfinity).right());
}

TEST(ErrorBound, HasMoreOfTheBandWhereThePlainEvaluationTellsNothing) {
  ErrorBound bound;
  bound.error = 2.9;
  bound.band = 1;
  EXPECT_TRUE(bound.holds());
  bound.error = 3.1;
  EXPECT_FALSE(bound.holds());
  bound.plain_error = 1.1;
  EXPECT_TRUE(bound.holds());
  bound.plain_error = 0.9;
  EXPECT_FALSE(bound.holds());
}

}  // namespace
}  // namespace scoremod::verification
