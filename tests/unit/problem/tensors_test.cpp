#include "scoremod/tensors.hpp"

#include <limits>

#include <gtest/gtest.h>

#include "scoremod/error.hpp"

#include "support/problem_for.hpp"

namespace scoremod {
namespace {

AttentionProblem problem_with_operands() {
  AttentionProblem problem = test::small_problem();
  problem.q.layout = Layout::kBHSD;
  problem.k.strides = Strides{1000, 100, 10, 1};
  problem.program = Program::parse("operand n: i32 [b]\ntable t: f32 rank 2\nvalue = score * t[h, n]");
  problem.operands = {{"t", DType::kF16, {4, 9}, {1, 4}}, {"n", DType::kI32, {2}, {}}};
  problem.backward = true;
  return problem;
}

TEST(Tensors, AreListedInOrderWithShapesOfTheirLayout) {
  const std::vector<TensorInfo> tensors = tensors_of(problem_with_operands());
  ASSERT_EQ(tensors.size(), 7u);
  EXPECT_EQ(tensors[0], (TensorInfo{"q", DType::kF32, {2, 4, 5, 8}, {160, 40, 8, 1}, "BHSD", 4 * 320, true}));
  EXPECT_EQ(tensors[1], (TensorInfo{"k", DType::kF32, {2, 7, 2, 8}, {1000, 10, 100, 1}, "BSHD", 4 * 1168, true}));
  EXPECT_EQ(tensors[2], (TensorInfo{"v", DType::kF32, {2, 7, 2, 6}, {84, 12, 6, 1}, "BSHD", 4 * 168, true}));
  EXPECT_EQ(tensors[3], (TensorInfo{"o", DType::kF32, {2, 5, 4, 6}, {120, 24, 6, 1}, "BSHD", 4 * 240, false}));
  EXPECT_EQ(tensors[4], (TensorInfo{"lse", DType::kF32, {2, 4, 5}, {20, 5, 1}, "BHS", 4 * 40, false}));
  EXPECT_EQ(tensors[5], (TensorInfo{"n", DType::kI32, {2}, {1}, "b", 8, false}));
  EXPECT_EQ(tensors[6], (TensorInfo{"t", DType::kF16, {4, 9}, {1, 4}, "table", 72, true}));
}

TEST(Tensors, HaveNoGradientsWithoutBackward) {
  AttentionProblem problem = problem_with_operands();
  problem.backward = false;
  for (const TensorInfo& tensor : tensors_of(problem)) EXPECT_FALSE(tensor.has_gradient) << tensor.name;
}

TEST(Tensors, OfAnInvalidProblemAreRefused) {
  AttentionProblem problem = problem_with_operands();
  problem.batch = 0;
  EXPECT_THROW(tensors_of(problem), Error);
}

TEST(Elements, AreWrittenRoundedOnceAndReadExactly) {
  const auto stored = [](DType dtype, double number) {
    std::uint32_t memory = 0;
    write_element(dtype, &memory, number);
    return read_element(dtype, &memory);
  };
  EXPECT_EQ(stored(DType::kF32, 1.0 + 0x1p-24), 1.0);
  EXPECT_EQ(stored(DType::kF16, 1.0 + 0x1p-10), 1.0 + 0x1p-10);
  EXPECT_EQ(stored(DType::kF16, 1e6), std::numeric_limits<double>::infinity());
  EXPECT_EQ(stored(DType::kBF16, 1.0 + 0x1p-7), 1.0 + 0x1p-7);
  EXPECT_EQ(stored(DType::kBF16, 1.0 + 0x1p-8), 1.0);
  EXPECT_EQ(stored(DType::kI32, -2147483648.0), -2147483648.0);
  EXPECT_EQ(stored(DType::kBool, 1), 1);
  EXPECT_EQ(stored(DType::kBool, 0), 0);
}

}  // namespace
}  // namespace scoremod
