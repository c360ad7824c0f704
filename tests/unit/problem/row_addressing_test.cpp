#include "problem/row_addressing.hpp"

#include <set>

#include <gtest/gtest.h>

#include "problem/implied_operands.hpp"

namespace scoremod::problem {
namespace {

AttentionProblem problem_of(Layout layout) {
  AttentionProblem problem;
  problem.batch = 2;
  problem.heads_q = 6;
  problem.heads_kv = 3;
  problem.seq_q = 4;
  problem.seq_kv = 5;
  problem.dim_qk = 7;
  problem.dim_v = 8;
  for (TensorLayout* tensor : {&problem.q, &problem.k, &problem.v, &problem.o}) tensor->layout = layout;
  return problem;
}

TEST(RowAddressing, RowsOfADenseTensorFillItOnce) {
  for (const Layout layout : {Layout::kBSHD, Layout::kSBHD, Layout::kBHSD}) {
    for (const TensorRole role : {TensorRole::kQ, TensorRole::kK, TensorRole::kV, TensorRole::kO}) {
      const RowAddressing rows(problem_of(layout), role);
      const TensorShape& shape = rows.shape();
      std::set<std::int64_t> seen;
      for (std::int64_t b = 0; b < shape.batch; ++b) {
        for (std::int64_t h = 0; h < shape.heads; ++h) {
          for (std::int64_t s = 0; s < shape.sequence; ++s) {
            for (std::int64_t d = 0; d < shape.dim; ++d) seen.insert(rows.row(b, h, s) + d * rows.element_step());
          }
        }
      }
      const std::int64_t elements = shape.batch * shape.heads * shape.sequence * shape.dim;
      EXPECT_EQ(static_cast<std::int64_t>(seen.size()), elements) << to_string(layout) << to_string(role);
      EXPECT_EQ(*seen.rbegin(), elements - 1) << to_string(layout) << to_string(role);
    }
  }
}

TEST(RowAddressing, StepsLeadToTheNeighbours) {
  AttentionProblem problem = problem_of(Layout::kBSHD);
  problem.k.strides = Strides{1000, 9, 150, 2};
  const RowAddressing rows(problem, TensorRole::kK);
  EXPECT_EQ(rows.row(1, 2, 3), 1000 + 2 * 9 + 3 * 150);
  EXPECT_EQ(rows.row(1, 2, 3) + rows.row_step(), rows.row(1, 2, 4));
  EXPECT_EQ(rows.row(1, 1, 3) + rows.head_step(), rows.row(1, 2, 3));
  EXPECT_EQ(rows.element_step(), 2);
}

TEST(RowAddressing, TheExpressionIsTheRow) {
  AttentionProblem problem = problem_of(Layout::kBSHD);
  problem.o.strides = Strides{1000, 9, 150, 1};
  EXPECT_EQ(RowAddressing(problem, TensorRole::kO).row_expression("b", "h % 2", "q0 + r"),
            "(b) * 1000LL + (h % 2) * 9LL + (q0 + r) * 150LL");
}

TEST(RowAddressing, RaggedRowsBeginWhereTheOffsetsSay) {
  AttentionProblem problem = problem_of(Layout::kBSHD);
  problem.tokens_q = 7;
  problem.q.layout = problem.o.layout = Layout::kTHD;
  problem = with_implied_operands(problem);
  const std::int32_t offsets[] = {0, 4, 7};
  const void* operands[] = {offsets};
  const RowAddressing rows(problem, TensorRole::kQ), lse(problem, TensorRole::kLse);
  EXPECT_FALSE(rows.is_dense());
  EXPECT_EQ(rows.positions(0, operands), 4);
  EXPECT_EQ(rows.positions(1, operands), 3);
  EXPECT_EQ(rows.rows(1, 2, operands).row(1), (5 * 6 + 2) * 7);
  EXPECT_EQ(lse.rows(1, 2, operands).row(1), 5 * 6 + 2);
  EXPECT_TRUE(RowAddressing(problem, TensorRole::kK).is_dense());
}

TEST(RowAddressing, PagedRowsLieInTheBlocksOfTheTable) {
  AttentionProblem problem = problem_of(Layout::kBHSD);
  problem.lengths.kv = true;
  problem.paged = PagedKeys{2, 9, 3};
  problem = with_implied_operands(problem);
  const std::int32_t keys[] = {8, 1, 3, 0, 5, 2}, values[] = {7, 6, 4, 0, 0, 0}, lengths[] = {5, 3};
  std::vector<const void*> operands;
  for (const OperandDecl& decl : problem.program.operands()) {
    operands.push_back(decl.name == kPagesOfKeys ? keys : decl.name == kPagesOfValues ? values : lengths);
  }
  const RowAddressing k(problem, TensorRole::kK), v(problem, TensorRole::kV);
  EXPECT_EQ(k.positions(1, operands), 3);
  // Pages [9, 3 heads, 2, 7]: position 2 of batch 1 is the first of page 5.
  EXPECT_EQ(k.rows(1, 2, operands).row(2), (5 * 3 + 2) * 2 * 7);
  EXPECT_EQ(k.rows(0, 1, operands).row(3), ((1 * 3 + 1) * 2 + 1) * 7);
  EXPECT_EQ(v.rows(0, 1, operands).row(0), (7 * 3 + 1) * 2 * 8);
}

}  // namespace
}  // namespace scoremod::problem
