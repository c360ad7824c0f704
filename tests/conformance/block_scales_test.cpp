// FP8 tensors with block scales (MXFP8 and scales of rows) against the dense formula on their scaled values: the oracle
// to its own rounding, the other backends by check(). Scales that are taken of the wrong block must be found.

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/attention.hpp"
#include "scoremod/problem_buffers.hpp"

#include "base/element.hpp"
#include "check/check_subject.hpp"
#include "check/random_problem.hpp"
#include "compiler/pipeline.hpp"
#include "conformance/conformance.hpp"
#include "conformance/host_calls.hpp"
#include "problem/implied_operands.hpp"
#include "problem/strided_tensor.hpp"
#include "support/check_report.hpp"
#include "support/dense_attention.hpp"
#include "support/faulty_subject.hpp"
#include "support/problem_for.hpp"
#include "support/test_seed.hpp"

namespace scoremod {
namespace {

using problem::TensorRole;
using Index = std::int64_t;

/// How elements share scales.
enum class Blocks { kOfDims, kOfKeys, kOfRows, kOfElements };

AttentionProblem scaled_problem(Blocks blocks, bool backward) {
  AttentionProblem problem;
  problem.batch = 2;
  problem.heads_q = 4;
  problem.heads_kv = 2;
  problem.seq_q = 37;
  problem.seq_kv = 70;
  problem.dim_qk = 64;
  problem.dim_v = 40;
  for (TensorLayout* tensor : {&problem.q, &problem.k, &problem.v, &problem.o}) tensor->layout = Layout::kBHSD;
  problem.dtype = DType::kE4M3;
  problem.dtype_o = DType::kF32;
  problem.stats = true;
  problem.backward = backward;
  if (backward) problem.dtype_gradients = DType::kF32;
  for (const TensorRole role : {TensorRole::kQ, TensorRole::kK, TensorRole::kV}) {
    const problem::TensorShape shape = problem::memory_shape_of(problem, role);
    const auto in_blocks = [](Index size) { return (size + 31) / 32; };
    const bool of_keys = blocks == Blocks::kOfKeys, of_dims = blocks == Blocks::kOfDims;
    const Index rows = of_keys ? in_blocks(shape.sequence) : shape.sequence, dims = of_dims ? in_blocks(shape.dim)
                                                                                    : blocks == Blocks::kOfRows
                                                                                        ? 1
                                                                                        : shape.dim;
    problem.operands.push_back(
        {problem::descale_of(role), DType::kF32, {shape.batch, shape.heads, rows, dims}, {}, false});
  }
  return problem;
}

/// The values of a tensor, dense, by the definition of block scales.
std::vector<double> values(const AttentionProblem& problem, TensorRole role, const std::vector<std::byte>& bytes,
                           const ProblemInputs& inputs) {
  const problem::StridedTensor tensor = problem::tensor_of("", problem, role);
  std::vector<double> values = test::to_dense(bytes, tensor.dtype, tensor.shape, tensor.strides);
  const std::string name = problem::descale_of(role);
  const auto operand = std::ranges::find(inputs.operands, name, &OwnedOperand::name);
  const std::vector<Index>& extents = std::ranges::find(problem.operands, name, &OperandSpec::name)->shape;
  for (std::size_t i = 0; i < values.size(); ++i) {
    auto rest = static_cast<Index>(i);
    std::array<Index, 4> at{};
    for (std::size_t axis = 4; axis-- > 0; rest /= tensor.shape[axis]) at[axis] = rest % tensor.shape[axis];
    Index scale = 0;
    for (std::size_t axis = 0; axis < 4; ++axis) {
      const Index own = extents[axis] == 1 ? 0 : extents[axis] == tensor.shape[axis] ? at[axis] : at[axis] / 32;
      scale = scale * extents[axis] + own;
    }
    values[i] *= load_element<double>(operand->bytes.data(), DType::kF32, scale);
  }
  return values;
}

test::DenseResult dense(const AttentionProblem& problem, const ProblemInputs& inputs) {
  std::vector<double> d_o;
  if (problem.backward) {
    const problem::StridedTensor tensor = problem::tensor_of("", problem, TensorRole::kDO);
    d_o = test::to_dense(inputs.d_o, tensor.dtype, tensor.shape, tensor.strides);
  }
  return test::dense_attention(
      problem,
      {values(problem, TensorRole::kQ, inputs.q, inputs), values(problem, TensorRole::kK, inputs.k, inputs),
       values(problem, TensorRole::kV, inputs.v, inputs), d_o},
      {});
}

void expect_near(const std::string& name, const std::vector<double>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size()) << name;
  for (std::size_t i = 0; i < found.size(); ++i)
    ASSERT_NEAR(found[i], expected[i], 1e-6 * std::abs(expected[i]) + 1e-6) << name << " " << i;
}

class BlockScaledTensors : public testing::TestWithParam<Blocks> {};

TEST_P(BlockScaledTensors, AreAttentionOfTheNumbersThatTheyStandFor) {
  const AttentionProblem problem = scaled_problem(GetParam(), true);
  const ProblemInputs inputs = random_inputs(problem);
  const ProblemBuffers found = test::run_calls(problem, inputs, "reference");
  const test::DenseResult expected = dense(problem, inputs);
  expect_near("o", test::output_values(found, "o"), expected.o);
  expect_near("lse", test::output_values(found, "lse"), expected.lse);
  expect_near("dq", test::output_values(found, "dq"), expected.dq);
  expect_near("dk", test::output_values(found, "dk"), expected.dk);
  expect_near("dv", test::output_values(found, "dv"), expected.dv);
  test::expect_backends_conform(problem, inputs);
}

INSTANTIATE_TEST_SUITE_P(Blocks, BlockScaledTensors,
                         testing::Values(Blocks::kOfDims, Blocks::kOfKeys, Blocks::kOfRows, Blocks::kOfElements));

TEST(BlockScaledTensors, OfRandomProgramsConform) {
  for (int number = 0; number < 60; ++number) {
    const std::uint64_t seed = test::test_seed() + static_cast<std::uint64_t>(number);
    checking::RandomProblemOptions options;
    if (number % 2 == 0) options.dtypes = {DType::kE4M3, DType::kE5M2};
    options.float8_keys_probability = 1;
    options.block_scales_probability = 0.8;
    options.few_rows_probability = 0.1;
    options.lengths_probability = options.sink_probability = options.dropout_probability = 0.2;
    options.max_logit_probability = options.gradient_layout_probability = 0.2;
    options.ragged_probability = options.paged_probability = 0.4;
    checking::CheckCase made = checking::random_problem(seed, options);
    made.name = "problem " + std::to_string(number) + " (SCOREMOD_TEST_SEED=" + std::to_string(test::test_seed()) + ")";
    for (const std::string& backend : test::tested_backends()) test::expect_conforms(backend, made);
    if (HasFailure()) return;
  }
}

/// A scale that is NaN, as an MXFP8 block may have it, makes its keys NaN, and not those of other blocks. Where a mask
/// leaves the keys out, they have no influence.
TEST(BlockScaledTensors, MayHaveScalesThatAreNoNumbers) {
  AttentionProblem problem = scaled_problem(Blocks::kOfKeys, false);
  problem.lengths.kv = true;
  ProblemInputs inputs = random_inputs(problem);
  const auto operand = [&](const std::string& name) -> std::vector<std::byte>& {
    return std::ranges::find(inputs.operands, name, &OwnedOperand::name)->bytes;
  };
  test::set_operand(problem, inputs, "lengths_kv", {64, 70});
  // Keys from 64 on of batch 0, which its length leaves out.
  for (const char* name : {"descale_k", "descale_v"}) {
    for (Index d = 0; d < problem.dim_v; ++d)
      store_element(operand(name).data(), DType::kF32, 2 * (name[8] == 'k' ? problem.dim_qk : problem.dim_v) + d,
                    std::numeric_limits<double>::quiet_NaN());
  }
  for (const char* backend : {"reference", "cpu"}) {
    const std::vector<double> o = test::output_values(test::run_calls(problem, inputs, backend), "o");
    EXPECT_TRUE(std::ranges::none_of(o, [](double value) { return std::isnan(value); })) << backend;
  }
  test::set_operand(problem, inputs, "lengths_kv", {65, 70});
  for (const char* backend : {"reference", "cpu"}) {
    const std::vector<double> o = test::output_values(test::run_calls(problem, inputs, backend), "o");
    EXPECT_TRUE(std::isnan(o.front())) << backend;
    EXPECT_FALSE(std::isnan(o.back())) << backend;
  }
}

/// The right implementation with the scales of the blocks in another order.
TEST(BlockScaledNegativeControls, ScalesOfOtherBlocksAreFound) {
  for (const Blocks blocks : {Blocks::kOfDims, Blocks::kOfKeys, Blocks::kOfRows}) {
    const AttentionProblem problem = scaled_problem(blocks, false);
    const compiler::CompiledProblem compiled = compiler::compile(problem);
    const ProblemInputs inputs = random_inputs(problem);
    const checking::Subject right = test::reference_subject(compiled);
    EXPECT_TRUE(checking::check_subject(compiled, right, inputs, {}).passed());
    for (const char* name : {"descale_q", "descale_k", "descale_v"}) {
      ProblemInputs turned = inputs;
      std::vector<std::byte>& scales =
          std::ranges::find(turned.operands, std::string(name), &OwnedOperand::name)->bytes;
      std::rotate(scales.begin(), scales.begin() + sizeof(float), scales.end());
      checking::Subject wrong = right;
      wrong.forward = [&](ForwardArgs args, Buffer workspace) {
        for (OperandBuffer& operand : args.operands)
          if (operand.name == name) operand.buffer.data = scales.data();
        right.forward(args, workspace);
      };
      EXPECT_FALSE(checking::check_subject(compiled, wrong, inputs, {}).passed()) << name << static_cast<int>(blocks);
    }
  }
}

}  // namespace
}  // namespace scoremod
