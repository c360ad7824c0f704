#include "backend/cudnn/lowering/page_mask.hpp"

#include <algorithm>

#include <gtest/gtest.h>

#include "compiler/pipeline.hpp"
#include "unit/backend/cudnn/lowering/lowered_programs.hpp"

namespace scoremod::backend::cudnn {
namespace {

AttentionProblem paged_problem(const char* program) {
  AttentionProblem problem;
  problem.batch = 2;
  problem.seq_q = 8;
  problem.seq_kv = 40;
  problem.dtype = DType::kBF16;
  problem.lengths.kv = true;
  problem.paged = PagedKeys{16, 7, 3};
  problem.program = Program::parse(program);
  return problem;
}

TEST(PageMask, IsAnOperandBehindAllOthers) {
  for (const char* program : {"value = score", "operand names_pages: f32 [h]\nvalue = score * names_pages"}) {
    AttentionProblem problem = paged_problem(program);
    if (problem.program.operands().size() == 1) problem.operands = {{"names_pages", DType::kF32, {1}, {}}};
    const compiler::CompiledProblem before = compiler::compile(problem), after = with_page_mask(before);
    const auto& operands = after.problem.program.operands();
    ASSERT_EQ(operands.size(), before.problem.program.operands().size() + 1) << program;
    EXPECT_EQ(page_mask_operand(after.problem), operands.size() - 1);
    EXPECT_EQ(operands.back().axes, (std::array<bool, kAxisCount>{true, false, false, true}));
    EXPECT_EQ(after.problem.operands.back().shape, (std::vector<std::int64_t>{2, 40}));
  }
  EXPECT_FALSE(page_mask_operand(compiled(Program::parse("value = score")).problem));
}

/// An expression of operands alone is a tensor that is computed beforehand.
TEST(PageMask, IsReadByTheModifier) {
  const auto is_masked = [](const compiler::CompiledProblem& problem, RowClass rows) {
    const LoweringResult result = lower(problem, {false, false, right_on_h200(false, rows), 0});
    EXPECT_TRUE(result.lowered) << text_of(result);
    const ComputedOperand mask{kNoNode, {true, false, false, true}, Type::kBool};
    return result.lowered && std::ranges::any_of(result.lowered->computed, [&](ComputedOperand computed) {
             computed.node = kNoNode;
             return computed == mask;
           });
  };
  AttentionProblem problem = paged_problem("value = score\nkeep = kv_idx <= q_idx + 30");
  for (const std::int64_t queries : {1, 8}) {
    problem.seq_q = queries;
    const RowClass rows = queries == 1 ? RowClass::kOneRow : RowClass::kManyRows;
    EXPECT_TRUE(is_masked(with_page_mask(compiler::compile(problem)), rows)) << queries;
    EXPECT_FALSE(is_masked(compiler::compile(problem), rows)) << queries;
  }
}

}  // namespace
}  // namespace scoremod::backend::cudnn
