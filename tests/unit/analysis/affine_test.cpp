#include "analysis/affine.hpp"

#include <gtest/gtest.h>

namespace scoremod::analysis {
namespace {

constexpr std::int64_t kMaxFactor = std::int64_t{1} << 28;
constexpr std::int64_t kMaxConstant = std::int64_t{1} << 60;

/// factor * q_idx.
AffineForm queries(std::int64_t factor) {
  AffineForm out;
  out.factor[static_cast<std::size_t>(Axis::kQuery)] = factor;
  return out;
}

AffineForm number(std::int64_t constant) {
  AffineForm out;
  out.constant = constant;
  return out;
}

TEST(AffineForm, EndsWhereAFactorGrowsTooLarge) {
  EXPECT_EQ(scaled(queries(1), kMaxFactor), queries(kMaxFactor));
  EXPECT_EQ(scaled(queries(1), -kMaxFactor), queries(-kMaxFactor));
  EXPECT_EQ(scaled(queries(1), kMaxFactor + 1), std::nullopt);
  EXPECT_EQ(scaled(queries(1), -kMaxFactor - 1), std::nullopt);
  EXPECT_EQ(sum(queries(kMaxFactor - 1), queries(1)), queries(kMaxFactor));
  EXPECT_EQ(sum(queries(kMaxFactor), queries(1)), std::nullopt);
  EXPECT_EQ(difference(queries(-kMaxFactor), queries(1)), std::nullopt);
}

TEST(AffineForm, EndsWhereItsConstantGrowsTooLarge) {
  EXPECT_EQ(sum(number(kMaxConstant - 1), number(1)), number(kMaxConstant));
  EXPECT_EQ(sum(number(kMaxConstant), number(1)), std::nullopt);
  EXPECT_EQ(difference(number(-kMaxConstant), number(1)), std::nullopt);
  EXPECT_EQ(scaled(number(kMaxConstant / kMaxFactor), kMaxFactor), number(kMaxConstant));
  EXPECT_EQ(scaled(number(kMaxConstant / kMaxFactor + 1), 1), std::nullopt);
}

TEST(IsExact, EndsWithTheIntegersThatATypeCounts) {
  constexpr std::int64_t kFloat = std::int64_t{1} << 24, kInteger = std::int64_t{1} << 31;
  EXPECT_TRUE(is_exact({-kFloat, kFloat}, Type::kF32));
  EXPECT_FALSE(is_exact({-kFloat - 1, kFloat}, Type::kF32));
  EXPECT_FALSE(is_exact({-kFloat, kFloat + 1}, Type::kF32));
  EXPECT_TRUE(is_exact({-kInteger, kInteger - 1}, Type::kI32));
  EXPECT_FALSE(is_exact({-kInteger - 1, 0}, Type::kI32));
  EXPECT_FALSE(is_exact({0, kInteger}, Type::kI32));
}

}  // namespace
}  // namespace scoremod::analysis
