// Operands' gradients beside dq, dk and dv in the Hopper kernels, on a device, against the float64 oracle.

#include <algorithm>

#include <gtest/gtest.h>

#include "backend/cuda/device/device.hpp"
#include "backend/cuda/modules/kernel_cache.hpp"
#include "backend/kernels/backend/kernels_backend.hpp"
#include "backend/kernels/hopper/family.hpp"
#include "backend/kernels/operand_gradients/operand_gradients.hpp"
#include "compiler/pipeline.hpp"
#include "device/operand_gradient_case.hpp"
#include "problem/tensor_view.hpp"
#include "support/tiled_call.hpp"

namespace scoremod::backend::kernels {
namespace {

const OperandGradientCase kCases[] = {
    {"a table by head",
     "table x: f32 rank 2\nvalue = score + x[max(min(kv_idx - q_idx, 20), -20) + 20, h]",
     {2, 4, 2, 333, 290, 128}},
    {"a table of all differences",
     "table x: f32 rank 1\nvalue = score + x[kv_idx - q_idx + 700]",
     {2, 2, 2, 700, 500, 64},
     DType::kF16,
     Sink::kNone,
     0,
     {1300}},
    {"a table that multiplies, with a causal mask",
     "table x: f32 rank 1\nvalue = tanh(score * (1.0 + 0.1 * x[abs(kv_idx - q_idx) // 5]))\nkeep = kv_idx <= q_idx",
     {1, 4, 4, 500, 500, 128},
     DType::kBF16,
     Sink::kNone,
     0,
     {101}},
    {"a table by batch, tiles left out",
     "table x: f32 rank 2\nvalue = score + x[b, (kv_idx - q_idx) // 9 + 60]\nkeep = kv_idx // 150 == q_idx // 150 | "
     "kv_idx < 9",
     {2, 2, 1, 600, 600, 128},
     DType::kBF16,
     Sink::kNone,
     0,
     {2, 128}},
    {"a table, slopes, numbers of keys, a sink and dropout",
     "table x: f32 rank 2\noperand y: f32 [h]\noperand z: f32 [kv_idx]\nvalue = score * z + x[abs(kv_idx - q_idx) // "
     "16, h] + y * f32(kv_idx - q_idx) * 0.01",
     {2, 4, 2, 333, 290, 64},
     DType::kBF16,
     Sink::kLearned,
     0.3F},
    {"a table of wide heads",
     "table x: f32 rank 2\nvalue = score + x[max(min(kv_idx - q_idx, 20), -20) + 20, h]\nkeep = kv_idx <= q_idx + 100",
     {1, 4, 2, 200, 300, 256}},
    {"gradients along queries and keys",
     "operand x: f32 [b, h, q_idx, kv_idx]\noperand y: f32 [kv_idx]\nvalue = score * y + x\nkeep = kv_idx // 150 == "
     "q_idx // 150",
     {2, 4, 2, 333, 390, 128}},
    {"a learned sink", "value = score", {2, 4, 2, 333, 290, 128}, DType::kBF16, Sink::kLearned},
    {"slopes and a learned sink",
     "operand x: f32 [b, h]\nvalue = score + x * f32(kv_idx - q_idx) * 0.01\nkeep = kv_idx <= q_idx",
     {2, 4, 2, 333, 333, 64},
     DType::kF16,
     Sink::kLearned},
};

class GainsOfAttentionKernels : public test::OnDevice, public ::testing::WithParamInterface<int> {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (!IsSkipped() && cuda::current_compute_capability() != 90) GTEST_SKIP() << "no device of compute capability 9.0";
  }
};

/// Runs a backward of this shape, whose operand gradients must be the same bits each time.
void expect_right(const OperandGradientCase& test, const compiler::CompiledProblem& compiled,
                  const std::vector<OperandTarget>& targets, const HopperShape& shape) {
  const HopperShape forward_shape = hopper_shapes(compiled.problem, Direction::kForward).front();
  const auto kept = [](const std::string& text) {
    return cuda::cached_kernels(text, cuda::Instructions::kOfArchitecture);
  };
  const auto forward = forward_plan(test::attention_call(compiled, Direction::kForward, forward_shape),
                                    std::make_shared<LoadedModules>(std::vector<std::string>{kept(
                                        render_all(attention_source(compiled, Direction::kForward, forward_shape)))}));
  std::vector<std::string> modules;
  for (const std::string& text : render_modules(attention_source(compiled, Direction::kBackward, shape, targets)))
    modules.push_back(kept(text));
  const auto backward = backward_plan(test::attention_call(compiled, Direction::kBackward, shape, targets),
                                      std::make_shared<LoadedModules>(modules));

  expect_right_and_same_bits(test, compiled, kernels_backend(), *forward, nullptr, *backward,
                             shape.fused ? "operands' gradients beside the Hopper kernel that adds dq up"
                                         : "operands' gradients beside the Hopper kernels' backward");
}

TEST_P(GainsOfAttentionKernels, AreRightAndTheSameBitsEachTime) {
  const OperandGradientCase& test = kCases[GetParam()];
  SCOPED_TRACE(test.name);
  const compiler::CompiledProblem compiled = compiler::compile(problem_of(test));
  const auto targets = operand_targets(compiled, problem::operands_with_gradient(compiled.problem), Gains::kBeside);
  ASSERT_FALSE(targets.empty());
  expect_right(test, compiled, targets, hopper_backward_shape(compiled.problem, targets));
}

TEST_P(GainsOfAttentionKernels, AreRightAndTheSameBitsEachTimeWhereDqIsAddedUp) {
  const OperandGradientCase& test = kCases[GetParam()];
  SCOPED_TRACE(test.name);
  const compiler::CompiledProblem compiled = compiler::compile(problem_of(test));
  const auto targets = operand_targets(compiled, problem::operands_with_gradient(compiled.problem), Gains::kBeside);
  ASSERT_FALSE(targets.empty());
  if (!hopper_fused_objections(compiled.problem, hopper_fused_shape(compiled.problem), targets).empty())
    GTEST_SKIP() << "no such kernel";
  HopperShape shape = hopper_fused_shape(compiled.problem);
  for (const DqOrder order : {DqOrder::kFenceAtOnce, DqOrder::kLateFence, DqOrder::kEarlyAdditions}) {
    SCOPED_TRACE(static_cast<int>(order));
    shape.dq_order = order;
    expect_right(test, compiled, targets, shape);
  }
}
INSTANTIATE_TEST_SUITE_P(Cases, GainsOfAttentionKernels, ::testing::Range(0, static_cast<int>(std::size(kCases))));

}  // namespace
}  // namespace scoremod::backend::kernels
