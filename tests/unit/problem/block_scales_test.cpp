#include "problem/block_scales.hpp"

#include <array>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/sizes.hpp"

#include "problem/implied_operands.hpp"
#include "problem/structure_key.hpp"
#include "support/problem_for.hpp"
#include "support/refusal.hpp"

namespace scoremod::problem {
namespace {

using Shape = std::vector<std::int64_t>;

/// 2 batches, 2 KV heads, 70 keys, head dim 40; keys with scales of this shape.
AttentionProblem problem_with(Shape scales) {
  AttentionProblem problem;
  problem.batch = problem.heads_q = problem.heads_kv = 2;
  problem.seq_q = 5;
  problem.seq_kv = 70;
  problem.dim_qk = problem.dim_v = 40;
  problem.dtype = DType::kE4M3;
  problem.dtype_o = DType::kBF16;
  problem.k.layout = Layout::kBHSD;
  problem.operands.push_back({"descale_k", DType::kF32, std::move(scales), {}, false});
  return problem;
}

/// A call's operands: all null but the given ones.
std::vector<const void*> bound(const AttentionProblem& problem,
                               std::initializer_list<std::pair<const char*, const void*>> given) {
  std::vector<const void*> operands(problem.program.operands().size());
  for (const auto& [name, data] : given) operands.at(*operand_number(problem.program, name)) = data;
  return operands;
}

/// 0, 1, 2 and so on.
std::vector<float> numbered(std::size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 0.0F);
  return values;
}

std::vector<double> scales_of_row(const RowScales& scales, std::int64_t position) {
  std::vector<double> row(40, 1.0);
  scales.apply(position, std::span(row));
  return row;
}

TEST(BlockScales, HaveAnExtentForEachElementForBlocksOf32OrForAll) {
  EXPECT_EQ(scale_extents({1, 1, 70, 1}, 2), (Shape{70, 3, 1}));
  EXPECT_EQ(scale_extents({1, 1, 1, 64}, 3), (Shape{64, 2, 1}));
  EXPECT_EQ(scale_extents({1, 1, 32, 1}, 2), (Shape{32, 1}));
  EXPECT_EQ(scale_extents({1, 1, 1, 1}, 3), (Shape{1}));
  EXPECT_EQ(scale_extents({70, 64, 1, 1}, 0), (Shape{70, 1}));
  EXPECT_EQ(scale_extents({70, 64, 1, 1}, 1), (Shape{64, 1}));
  EXPECT_EQ(scale_extents({1, 1, kOpenSize, 1}, 2), (Shape{kOpenSize, 1}));
  EXPECT_EQ(scale_extents({1, 1, 0, 1}, 2), (Shape{0, 1}));
}

/// A cache with scales of rows, or of elements.
AttentionProblem cache_with(const Shape& of_keys, std::int64_t keys = 70) {
  AttentionProblem problem;
  problem.seq_kv = keys;
  problem.dim_qk = problem.dim_v = 64;
  problem.dtype = DType::kBF16;
  problem.dtype_kv = DType::kE4M3;
  problem.operands = {{"descale_k", DType::kF32, of_keys, {}, false}};
  return problem;
}

TEST(BlockScales, OfRowsAreAnotherStructureThanOthers) {
  const AttentionProblem rows = cache_with({1, 1, 70, 1}), elements = cache_with({1, 1, 70, 64});
  EXPECT_TRUE(has_row_scales(rows));
  EXPECT_TRUE(has_row_scales(cache_with({1, 1, 3, 1})));
  EXPECT_FALSE(has_row_scales(elements));
  EXPECT_FALSE(has_row_scales(cache_with({})));
  EXPECT_FALSE(same_structure(rows, elements));
  EXPECT_NE(structure_key(rows), structure_key(elements));
  const AttentionProblem longer = cache_with({1, 1, 3, 1}, 90);
  EXPECT_TRUE(same_structure(rows, longer));
  EXPECT_EQ(structure_key(rows), structure_key(longer));
  AttentionProblem both = elements;
  both.operands.push_back({"descale_v", DType::kF32, {1, 1, 70, 1}, {}, false});
  EXPECT_FALSE(has_row_scales(both)) << "kernels multiply by both";
}

TEST(BlockScales, AreThoseOfTheRowsBlockInADenseTensor) {
  const AttentionProblem problem = with_implied_operands(problem_with({2, 2, 3, 2}));
  const std::vector<float> data = numbered(24);
  const RowScales scales = BlockScales(problem, TensorRole::kK).of(1, 0, bound(problem, {{"descale_k", data.data()}}));
  for (const std::int64_t position : {0, 31, 32, 69}) {
    const std::vector<double> row = scales_of_row(scales, position);
    for (std::size_t d = 0; d < row.size(); ++d) {
      const auto block = (position < 32 ? 0 : position < 64 ? 2 : 4) + (d < 32 ? 0 : 1);
      EXPECT_EQ(row[d], 12 + block) << position << " " << d;
    }
  }
}

TEST(BlockScales, OfOneExtentAreShared) {
  const AttentionProblem problem = with_implied_operands(problem_with({1, 2, 70, 1}));
  const std::vector<float> data = numbered(140);
  for (const std::int64_t batch : {0, 1}) {
    const RowScales scales =
        BlockScales(problem, TensorRole::kK).of(batch, 1, bound(problem, {{"descale_k", data.data()}}));
    EXPECT_EQ(scales_of_row(scales, 3), std::vector<double>(40, 73));
  }
}

TEST(BlockScales, FollowTheTokensOfVarlenSequences) {
  AttentionProblem problem = problem_with({1, 2, 4, 1});
  problem.tokens_kv = 100;
  problem.k.layout = problem.v.layout = Layout::kTHD;
  problem = with_implied_operands(problem);
  const std::vector<float> data = numbered(8);
  const std::int32_t offsets[] = {0, 30, 100};
  const RowScales scales = BlockScales(problem, TensorRole::kK)
                               .of(1, 1, bound(problem, {{"descale_k", data.data()}, {"offsets_kv", offsets}}));
  EXPECT_EQ(scales_of_row(scales, 0).front(), 4);  // token 30
  EXPECT_EQ(scales_of_row(scales, 2).front(), 5);  // token 32
  EXPECT_EQ(scales_of_row(scales, 69).front(), 7);
}

TEST(BlockScales, FollowThePagesOfAPagedCache) {
  AttentionProblem problem = problem_with({9, 2, 2, 1});
  problem.lengths.kv = true;
  problem.paged = PagedKeys{40, 9, 2};
  problem = with_implied_operands(problem);
  const std::vector<float> data = numbered(36);
  const std::int32_t table[] = {8, 1, 3, 5}, lengths[] = {70, 70};
  const RowScales scales =
      BlockScales(problem, TensorRole::kK)
          .of(1, 1, bound(problem, {{"descale_k", data.data()}, {"page_table_k", table}, {"lengths_kv", lengths}}));
  EXPECT_EQ(scales_of_row(scales, 31).front(), 3 * 4 + 2);
  EXPECT_EQ(scales_of_row(scales, 32).front(), 3 * 4 + 3);
  EXPECT_EQ(scales_of_row(scales, 40).front(), 5 * 4 + 2);
}

TEST(BlockScales, MayHaveStrides) {
  AttentionProblem problem = problem_with({2, 2, 3, 2});
  problem.operands.back().strides = {1, 2, 4, 12};
  problem = with_implied_operands(problem);
  const std::vector<float> data = numbered(24);
  const RowScales scales = BlockScales(problem, TensorRole::kK).of(1, 1, bound(problem, {{"descale_k", data.data()}}));
  EXPECT_EQ(scales_of_row(scales, 40).front(), 1 + 2 + 4);
  EXPECT_EQ(scales_of_row(scales, 40).back(), 1 + 2 + 4 + 12);
}

TEST(BlockScales, OfAnotherShapeAreRefused) {
  EXPECT_NO_THROW(validate(problem_with({2, 2, 70, 40})));
  EXPECT_NO_THROW(validate(problem_with({1, 1, 1, 1})));
  for (const Shape& shape :
       {Shape{3, 2, 70, 40}, Shape{2, 2, 2, 40}, Shape{2, 2, 70, 20}, Shape{2, 2, kOpenSize, 40}}) {
    test::expect_refusal("operands[0].shape", [&] { validate(problem_with(shape)); });
  }
  test::expect_refusal(
      "expected [2 or 1, 2 or 1, 70 or 3 or 1, 40 or 2 or 1] of operand 'descale_k', a scale for each element, for "
      "each block "
      "of 32 or for all along a dimension of k; found [2, 2, 2, 2]",
      [] {
        validate(problem_with({2, 2, 2, 2}));
      });
  AttentionProblem output = problem_with({1, 1, 1, 1});
  output.dtype_o = std::nullopt;
  output.operands.push_back({"scale_o", DType::kF32, {1, 1, 1, 1}, {}, false});
  test::expect_refusal("operands[1].shape: expected []", [&] { validate(output); });
}

TEST(BlockScales, HaveExtentsThatComeWithTheCall) {
  AttentionProblem open = problem_with({kOpenSize, kOpenSize, kOpenSize, kOpenSize});
  open.batch = open.seq_kv = kOpenSize;
  Sizes sizes;
  sizes.batch = 2;
  sizes.seq_kv = 70;
  sizes.operands.push_back({"descale_k", {2, 1, 3, 40}, {}});
  EXPECT_EQ(problem_at(open, sizes), problem_with({2, 1, 3, 40}));
  sizes.operands.back().shape = {2, 1, 4, 40};
  test::expect_refusal("found [2, 1, 4, 40]", [&] { problem_at(open, sizes); });
  sizes.operands.clear();
  test::expect_refusal("operands['descale_k'].shape[0]", [&] { problem_at(open, sizes); });
}

}  // namespace
}  // namespace scoremod::problem
