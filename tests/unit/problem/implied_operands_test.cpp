#include "problem/implied_operands.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/tensors.hpp"

#include "base/concat.hpp"
#include "support/problem_for.hpp"
#include "support/refusal.hpp"

namespace scoremod::problem {
namespace {

AttentionProblem with_everything() {
  AttentionProblem problem = test::small_problem();
  problem.lengths = {true, true};
  problem.sink = Sink::kLearned;
  problem.program = Program::parse("operand t: f32 [h]\nvalue = score * t\nkeep = kv_idx <= q_idx");
  problem.operands = {{"t", DType::kF32, {4}, {}}};
  problem.backward = true;
  return problem;
}

TEST(ImpliedOperands, ComeAfterTheProgramsOwn) {
  const AttentionProblem problem = with_implied_operands(with_everything());
  EXPECT_EQ(problem.program,
            Program::parse("operand t: f32 [h]\noperand lengths_q: i32 [b]\noperand lengths_kv: i32 [b]\n"
                           "operand sink: f32 [h]\nvalue = score * t\nkeep = kv_idx <= q_idx"));
  const std::vector<OperandSpec> specs{{"t", DType::kF32, {4}, {}},
                                       {"lengths_q", DType::kI32, {2}, {}},
                                       {"lengths_kv", DType::kI32, {2}, {}},
                                       {"sink", DType::kF32, {4}, {}}};
  EXPECT_EQ(problem.operands, specs);
  EXPECT_EQ(sink_operand(problem), 3U);
  EXPECT_EQ(with_implied_operands(problem), problem);
}

TEST(ImpliedOperands, HaveTheKeysOfDropout) {
  AttentionProblem problem = test::small_problem();
  problem.dropout_keys = true;
  test::expect_refusal("dropout_keys: expected them in a problem whose dropout is above 0", [&] { validate(problem); });
  problem.dropout = 0.5F;
  const AttentionProblem whole = with_implied_operands(problem);
  ASSERT_EQ(whole.operands.size(), 1U);
  EXPECT_EQ(whole.operands[0], (OperandSpec{"dropout_keys", DType::kI32, {problem.batch, 4}, {}}));
  EXPECT_EQ(whole.program.operands()[0].table_rank, 2);
  // With places beside them, which the shape says, and no other.
  problem.operands = {{"dropout_keys", DType::kI32, {problem.batch, 10}, {}}};
  EXPECT_EQ(with_implied_operands(problem).operands, problem.operands);
  EXPECT_NO_THROW(validate(problem));
  problem.operands[0].shape[1] = 7;
  test::expect_refusal(concat("shape: expected [", problem.batch, ", 4]"), [&] { validate(problem); });
}

TEST(ImpliedOperands, HaveTheScalesOfFp8Tensors) {
  const auto names = [](const AttentionProblem& problem) {
    std::vector<std::string> found;
    for (const OperandSpec& spec : with_implied_operands(problem).operands) {
      EXPECT_EQ(spec, (OperandSpec{spec.name, DType::kF32, {}, {}, false}));
      found.push_back(spec.name);
    }
    return found;
  };
  using Names = std::vector<std::string>;
  AttentionProblem problem = test::small_problem();
  problem.dtype = DType::kE4M3;
  EXPECT_EQ(names(problem), (Names{"descale_q", "descale_k", "descale_v", "scale_o"}));
  problem.backward = true;
  EXPECT_EQ(names(problem), (Names{"descale_q", "descale_k", "descale_v", "scale_o", "descale_d_o"}));
  problem.dtype_o = DType::kBF16;
  EXPECT_EQ(names(problem), (Names{"descale_q", "descale_k", "descale_v"}));
  problem.dtype_d_o = DType::kE5M2;
  EXPECT_EQ(names(problem), (Names{"descale_q", "descale_k", "descale_v", "descale_d_o"}));
  problem.dtype = DType::kBF16;
  EXPECT_FALSE(is_tensor_scale(problem, "descale_q"));
}

TEST(ImpliedOperands, HaveTheScalesOfAnFp8Cache) {
  AttentionProblem problem = test::small_problem();
  problem.backward = false;
  problem.dtype = DType::kBF16;
  problem.dtype_kv = DType::kE4M3;
  const auto scales = [&] {
    std::vector<OperandSpec> found;
    for (const OperandSpec& spec : with_implied_operands(problem).operands) {
      if (is_tensor_scale(problem, spec.name)) found.push_back(spec);
    }
    return found;
  };
  const OperandSpec of_keys{"descale_k", DType::kF32, {}, {}, false},
      of_values{"descale_v", DType::kF32, {}, {}, false};
  EXPECT_EQ(scales(), (std::vector{of_keys, of_values}));
  OperandSpec of_heads = of_values;
  of_heads.shape = {problem.heads_kv};
  problem.operands.push_back(of_heads);
  EXPECT_EQ(scales(), (std::vector{of_heads, of_keys}));
  EXPECT_NO_THROW(validate(problem));
  EXPECT_TRUE(has_head_scales(problem, "descale_v"));
  EXPECT_FALSE(has_head_scales(problem, "descale_k"));
  EXPECT_EQ(implied_table_shape(problem, "descale_v"), std::vector{problem.heads_kv});
  problem.operands.back().shape = {problem.heads_kv + 1};
  test::expect_refusal("shape: expected [2], which the problem's fields give operand 'descale_v'; found [3]",
                       [&] { validate(problem); });
  problem.operands.back().shape = {1, problem.heads_kv};
  test::expect_refusal("shape: expected [], the problem's sizes along the axes []", [&] { validate(problem); });
}

TEST(ImpliedOperands, AreNoneWithoutTheFields) {
  AttentionProblem problem = with_everything();
  problem.lengths = {};
  problem.sink = Sink::kOffByOne;
  EXPECT_EQ(with_implied_operands(problem), problem);
  EXPECT_EQ(sink_operand(problem), std::nullopt);
}

TEST(ImpliedOperands, AreAmongTheTensors) {
  const std::vector<TensorInfo> tensors = tensors_of(with_everything());
  ASSERT_EQ(tensors.size(), 9U);
  EXPECT_EQ(tensors[6].name, "lengths_q");
  EXPECT_EQ(tensors[7].name, "lengths_kv");
  EXPECT_FALSE(tensors[7].has_gradient);
  EXPECT_EQ(tensors[8].name, "sink");
  EXPECT_TRUE(tensors[8].has_gradient);
}

TEST(ImpliedOperands, OfLengthsMayBeReadByTheProgram) {
  AttentionProblem problem = test::small_problem();
  problem.lengths.kv = true;
  problem.program = Program::parse("operand lengths_kv: i32 [b]\nvalue = score / f32(lengths_kv)");
  EXPECT_NO_THROW(validate(problem));
  EXPECT_EQ(with_implied_operands(problem).program, problem.program);
}

TEST(ImpliedOperands, MustBeWhatTheFieldSays) {
  for (const auto& [program, message] : std::vector<std::pair<const char*, const char*>>{
           {"operand lengths_kv: i32 [b, h]\nvalue = score\nkeep = kv_idx < lengths_kv", "to be i32 [b]"},
           {"operand lengths_kv: f32 [b]\nvalue = score * lengths_kv", "to be i32 [b]"},
           {"operand sink: f32 [b]\nvalue = score", "to be f32 [h]"},
           {"operand sink: f32 [h]\nvalue = score + sink", "no program that reads operand 'sink'"}}) {
    AttentionProblem problem = with_everything();
    problem.program = Program::parse(program);
    problem.operands.clear();
    test::expect_refusal(message, [&] { validate(problem); });
  }
}

TEST(ImpliedOperands, PutLengthsIntoTheMask) {
  AttentionProblem problem = with_everything();
  problem.sink = Sink::kNone;
  const AttentionProblem bounded = with_lengths_in_mask(with_implied_operands(problem));
  EXPECT_EQ(bounded.lengths, SequenceLengths{});
  EXPECT_EQ(bounded.program,
            Program::parse("operand t: f32 [h]\noperand lengths_q: i32 [b]\noperand lengths_kv: i32 [b]\n"
                           "value = score * t\nkeep = kv_idx <= q_idx & q_idx < lengths_q & kv_idx < lengths_kv"));
}

}  // namespace
}  // namespace scoremod::problem
