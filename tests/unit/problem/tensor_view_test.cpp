#include "problem/tensor_view.hpp"

#include <gtest/gtest.h>

#include "scoremod/error.hpp"

#include "base/nearest_name.hpp"
#include "problem/extent.hpp"
#include "support/problem_for.hpp"

namespace scoremod::problem {
namespace {

TEST(Layout, NamesRoundTrip) {
  for (const Layout layout : {Layout::kBSHD, Layout::kSBHD, Layout::kBHSD})
    EXPECT_EQ(parse_layout(to_string(layout)), layout);
  EXPECT_EQ(parse_layout("bshd"), std::nullopt);
  EXPECT_EQ(parse_layout(""), std::nullopt);
}

TEST(TensorView, EachRoleHasItsHeadsSequenceAndDim) {
  const AttentionProblem problem = test::small_problem();
  const auto expect = [&](TensorRole role, std::int64_t heads, std::int64_t sequence, std::int64_t dim) {
    const TensorShape shape = shape_of(problem, role);
    EXPECT_EQ(shape.batch, 2) << to_string(role);
    EXPECT_EQ(shape.heads, heads) << to_string(role);
    EXPECT_EQ(shape.sequence, sequence) << to_string(role);
    EXPECT_EQ(shape.dim, dim) << to_string(role);
  };
  expect(TensorRole::kQ, 4, 5, 8);
  expect(TensorRole::kK, 2, 7, 8);
  expect(TensorRole::kV, 2, 7, 6);
  expect(TensorRole::kO, 4, 5, 6);
}

TEST(TensorView, StridesFollowTheLayout) {
  AttentionProblem problem = test::small_problem();
  EXPECT_EQ(strides_of(problem, TensorRole::kQ), (Strides{160, 8, 32, 1}));
  problem.q.layout = Layout::kSBHD;
  EXPECT_EQ(strides_of(problem, TensorRole::kQ), (Strides{32, 8, 64, 1}));
  problem.q.layout = Layout::kBHSD;
  EXPECT_EQ(strides_of(problem, TensorRole::kQ), (Strides{160, 40, 8, 1}));
  problem.q.strides = Strides{1, 2, 3, 4};
  EXPECT_EQ(strides_of(problem, TensorRole::kQ), (Strides{1, 2, 3, 4}));
}

TEST(TensorView, BytesReachToTheEndOfTheLastElement) {
  AttentionProblem problem = test::small_problem();
  problem.dtype = DType::kF16;
  EXPECT_EQ(bytes_of(problem, TensorRole::kV), 2u * 2 * 7 * 2 * 6);
  problem.v.strides = Strides{1000, 100, 10, 1};
  EXPECT_EQ(bytes_of(problem, TensorRole::kV), 2u * (1000 + 100 + 60 + 5 + 1));
}

TEST(TensorView, OperandStridesAreDenseUnlessGiven) {
  OperandSpec spec{"table", DType::kBF16, {3, 5}, {}};
  EXPECT_EQ(strides_of(spec), (std::array<std::int64_t, kMaxTableRank>{5, 1, 0, 0}));
  EXPECT_EQ(bytes_of(spec), 30u);
  spec.strides = {1, 4};
  EXPECT_EQ(strides_of(spec), (std::array<std::int64_t, kMaxTableRank>{1, 4, 0, 0}));
  EXPECT_EQ(bytes_of(spec), 2u * (2 + 16 + 1));
  EXPECT_EQ(bytes_of(OperandSpec{"scalar", DType::kF32, {}, {}}), 4u);
}

TEST(TensorView, SpecIsFoundByNameAndAMissingOneIsTheCallersMistake) {
  AttentionProblem problem = test::small_problem();
  problem.program = Program::parse("operand x: f32 []\noperand y: f32 [h]\nvalue = score + x + y");
  problem.operands = {{"y", DType::kF32, {4}, {}}};
  EXPECT_EQ(spec_of(problem, 1).shape.front(), 4);
  EXPECT_THROW(spec_of(problem, 0), Error);
}

TEST(Extent, RefusesWhatDoesNotFitInsteadOfWrapping) {
  constexpr std::int64_t kBig = std::int64_t{1} << 40;
  EXPECT_EQ(extent_bytes(std::array<std::int64_t, 2>{3, 4}, std::array<std::int64_t, 2>{4, 1}, 4), 48u);
  EXPECT_EQ(extent_bytes(std::array<std::int64_t, 1>{kBig}, std::array<std::int64_t, 1>{kBig}, 1), std::nullopt);
  EXPECT_EQ(extent_bytes(std::array<std::int64_t, 2>{kBig, kBig}, std::array<std::int64_t, 2>{0, 0}, 1), std::nullopt);
  // 2^62 elements of one byte fit; of two bytes they do not.
  EXPECT_EQ(extent_bytes(std::array<std::int64_t, 1>{2}, std::array<std::int64_t, 1>{std::int64_t{1} << 62}, 1),
            (std::size_t{1} << 62) + 1);
  EXPECT_EQ(extent_bytes(std::array<std::int64_t, 1>{2}, std::array<std::int64_t, 1>{std::int64_t{1} << 62}, 2),
            std::nullopt);
}

TEST(Extent, DimensionsNestExactlyWhenSortedStridesClearTheInnerSpan) {
  const auto nest = [](std::array<std::int64_t, 2> sizes, std::array<std::int64_t, 2> strides, bool broadcast = false) {
    return dimensions_nest(sizes, strides, broadcast);
  };
  EXPECT_TRUE(nest({3, 4}, {4, 1}));
  EXPECT_TRUE(nest({3, 4}, {1, 3}));
  EXPECT_FALSE(nest({3, 4}, {3, 1}));
  EXPECT_FALSE(nest({3, 4}, {1, 1}));
  EXPECT_FALSE(nest({3, 4}, {0, 1}));
  EXPECT_TRUE(nest({3, 4}, {0, 1}, true));
  EXPECT_TRUE(nest({1, 4}, {0, 1}));
}

TEST(NearestName, SuggestsOnlyWhatIsCloseEnoughToBeASlip) {
  const std::vector<std::string> known{"heads_q", "heads_kv", "batch"};
  EXPECT_EQ(suggestion("head_q", known), " (did you mean 'heads_q'?)");
  EXPECT_EQ(suggestion("bacth", known), "");
  EXPECT_EQ(suggestion("batchs", known), " (did you mean 'batch'?)");
  EXPECT_EQ(suggestion("colour", known), "");
  EXPECT_EQ(suggestion(std::string(100000, 'b'), known), "");
  EXPECT_EQ(name_list(known), "'heads_q', 'heads_kv' and 'batch'");
  EXPECT_EQ(name_list({}), "none");
}

}  // namespace
}  // namespace scoremod::problem
