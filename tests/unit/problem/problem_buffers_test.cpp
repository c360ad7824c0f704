#include "scoremod/problem_buffers.hpp"

#include <gtest/gtest.h>

namespace scoremod {
namespace {

AttentionProblem problem_of(bool backward) {
  AttentionProblem problem;
  problem.seq_q = 3;
  problem.dim_v = 8;
  problem.backward = backward;
  // Named as other tensors are: names alone must not decide the binding.
  problem.program = Program::parse(
      "operand o: f32 [h]\noperand q: f32 []\noperand n: i32 []\nvalue = score * o + q\nkeep = kv_idx < n");
  problem.operands = {{"n", DType::kI32, {}, {}}, {"q", DType::kF32, {}, {}, false}, {"o", DType::kF32, {1}, {}}};
  return problem;
}

std::vector<std::string> names_of(const ProblemBuffers& buffers) {
  std::vector<std::string> names;
  for (const OutputTensor& output : buffers.outputs()) names.push_back(output.name);
  return names;
}

TEST(ProblemBuffers, HoldTheOutputsThatTheProblemHas) {
  const ProblemInputs inputs = random_inputs(problem_of(true));
  AttentionProblem problem = problem_of(false);
  EXPECT_EQ(names_of(ProblemBuffers(problem, buffers_of(inputs))), (std::vector<std::string>{"o"}));
  problem.stats = true;
  EXPECT_EQ(names_of(ProblemBuffers(problem, buffers_of(inputs))), (std::vector<std::string>{"o", "lse"}));
  EXPECT_EQ(names_of(ProblemBuffers(problem_of(true), buffers_of(inputs))),
            (std::vector<std::string>{"o", "lse", "dq", "dk", "dv", "d_o"}));
}

TEST(ProblemBuffers, BindEachTensorOnce) {
  const AttentionProblem problem = problem_of(true);
  const ProblemInputs inputs = random_inputs(problem);
  ProblemBuffers buffers(problem, buffers_of(inputs));
  CallOptions options;
  options.offsets.key = 3;
  const ForwardArgs forward = buffers.forward(options);
  EXPECT_EQ(forward.q.data, inputs.q.data());
  EXPECT_EQ(forward.k.data, inputs.k.data());
  EXPECT_EQ(forward.v.data, inputs.v.data());
  EXPECT_EQ(forward.o.data, buffers.outputs()[0].bytes.data());
  EXPECT_EQ(forward.o.bytes, std::size_t{3} * 8 * 4);
  EXPECT_EQ(forward.lse.data, buffers.outputs()[1].bytes.data());
  ASSERT_EQ(forward.operands.size(), 3u);
  EXPECT_EQ(forward.operands[0].name, "o");
  EXPECT_EQ(forward.options.offsets.key, 3);
  const BackwardArgs backward = buffers.backward(options);
  EXPECT_EQ(backward.o.data, forward.o.data);
  EXPECT_EQ(backward.lse.data, forward.lse.data);
  EXPECT_EQ(backward.d_o.data, inputs.d_o.data());
  EXPECT_EQ(backward.dq.data, buffers.outputs()[2].bytes.data());
  EXPECT_EQ(backward.dk.data, buffers.outputs()[3].bytes.data());
  EXPECT_EQ(backward.dv.data, buffers.outputs()[4].bytes.data());
  ASSERT_EQ(backward.d_operands.size(), 1u);
  EXPECT_EQ(backward.d_operands[0].name, "o");
  EXPECT_EQ(backward.d_operands[0].buffer.data, buffers.outputs()[5].bytes.data());
  EXPECT_EQ(backward.options.offsets.key, 3);
}

TEST(ProblemBuffers, WhatIsNotWrittenIsNaN) {
  const AttentionProblem problem = problem_of(true);
  const ProblemInputs inputs = random_inputs(problem);
  const ProblemBuffers buffers(problem, buffers_of(inputs));
  std::size_t bytes = inputs.q.size() + inputs.k.size() + inputs.v.size() + inputs.d_o.size();
  for (const OwnedOperand& operand : inputs.operands) bytes += operand.bytes.size();
  for (const OutputTensor& output : buffers.outputs()) {
    EXPECT_EQ(output.bytes, std::vector<std::byte>(output.tensor.bytes, std::byte{0xff})) << output.name;
    bytes += output.bytes.size();
  }
  EXPECT_EQ(buffers.bytes(), bytes);
}

}  // namespace
}  // namespace scoremod
