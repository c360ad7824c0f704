// Gradients of tables, and of operands along queries and keys that batches or heads share, from tiles of scores on a
// device, against the float64 oracle. If SCOREMOD_DEVICE_TIMES is set, also their times beside the pass of cuBLAS.

#include <algorithm>
#include <cstdio>

#include <gtest/gtest.h>

#include "backend/cuda/device/cuda_memory.hpp"
#include "backend/cuda/device/own_stream.hpp"
#include "backend/cuda/device/workspace_alignment.hpp"
#include "backend/cuda/modules/kernel_cache.hpp"
#include "backend/cuda/operand_gradients/operand_gradients.hpp"
#include "backend/kernels/backend/kernels_backend.hpp"
#include "backend/kernels/operand_gradients/operand_gradients.hpp"
#include "base/fail.hpp"
#include "compiler/pipeline.hpp"
#include "device/operand_gradient_case.hpp"
#include "problem/tensor_view.hpp"
#include "support/tiled_call.hpp"

namespace scoremod::backend::kernels {
namespace {

const OperandGradientCase kCases[] = {
    {"a table of keys", "table x: f32 rank 2\nvalue = score + x[kv_idx // 9, h]"},
    {"one entry", "table x: f32 rank 2\nvalue = score * x[0, 0]\nkeep = kv_idx <= q_idx"},
    {"a relative-position table",
     "table x: f32 rank 2\nvalue = score + x[kv_idx - q_idx + 20, h]",
     {2, 4, 2, 333, 290, 128},
     DType::kF16},
    {"a table by ids of keys, a sink and dropout",
     "table x: f32 rank 2\noperand id: i32 [b, kv_idx]\nvalue = score + x[id, h]",
     {2, 4, 2, 333, 290, 64},
     DType::kBF16,
     Sink::kLearned,
     0.3F},
    {"two tables, ragged",
     "table x: f32 rank 2\ntable y: f32 rank 2\nvalue = score * (1.0 + x[(q_idx + kv_idx) // 9, h] * y[q_idx % 32, b])",
     {3, 4, 2, 240, 200, 64},
     DType::kBF16,
     Sink::kNone,
     0.2F,
     {},
     true},
    {"a table in floats",
     "table x: f32 rank 2\nvalue = score + x[kv_idx % 41, h]",
     {2, 2, 2, 100, 130, 128},
     DType::kF32},
    {"a table of wide heads", "table x: f32 rank 2\nvalue = score + x[kv_idx % 41, h]", {1, 4, 2, 200, 300, 256}},
    {"shared by batches",
     "operand x: f32 [h, q_idx, kv_idx]\nvalue = score + x\nkeep = kv_idx <= q_idx",
     {4, 4, 2, 333, 320, 128}},
    {"shared by all, a sink and dropout",
     "operand x: f32 [q_idx, kv_idx]\nvalue = score * x",
     {3, 4, 2, 140, 390, 64},
     DType::kF16,
     Sink::kLearned,
     0.3F},
    {"shared by heads, ragged",
     "operand x: f32 [b, q_idx, kv_idx]\nvalue = score + tanh(x)",
     {3, 4, 2, 240, 192, 64},
     DType::kBF16,
     Sink::kNone,
     0.2F,
     {},
     true},
    {"shared, in floats",
     "operand x: f32 [h, q_idx, kv_idx]\nvalue = tanh(score) * x",
     {3, 2, 2, 100, 130, 64},
     DType::kF32},
    {"of every kind",
     "table x: f32 rank 2\noperand s: f32 [q_idx, kv_idx]\noperand t: f32 [h, q_idx, kv_idx]\noperand e: f32 [b, h, "
     "q_idx, kv_idx]\noperand u: f32 []\noperand r: f32 [b, q_idx]\noperand c: f32 [h, kv_idx]\noperand n: f32 [h, "
     "q_idx]\nvalue = score * u + x[kv_idx % 7, h] * s + t * c + e + r\nkeep = kv_idx <= q_idx + 30",
     {2, 4, 2, 200, 190, 64},
     DType::kBF16,
     Sink::kLearned,
     0.2F},
    {"one query",
     "table x: f32 rank 2\noperand y: f32 [q_idx, kv_idx]\nvalue = score * y + x[q_idx - 5, h]",
     {3, 2, 2, 1, 333, 64}},
};

std::shared_ptr<LoadedModules> loaded(std::string image) {
  return std::make_shared<LoadedModules>(std::vector<std::string>{std::move(image)});
}

std::vector<OperandTarget> targets_of(const compiler::CompiledProblem& compiled) {
  return operand_targets(compiled, problem::operands_with_gradient(compiled.problem), Gains::kApart);
}

std::unique_ptr<BackwardPlan> operand_plan_of(const compiler::CompiledProblem& compiled) {
  const std::vector<OperandTarget> targets = targets_of(compiled);
  const PortableShape shape = portable_shape(compiled.problem, Direction::kBackward);
  return backward_plan(test::operand_call(compiled, targets, shape),
                       loaded(cuda::cached_kernels(render_all(operand_source(compiled, targets, shape)))));
}

class TablesOfAttentionKernels : public test::OnDevice, public ::testing::WithParamInterface<int> {};

TEST_P(TablesOfAttentionKernels, AreRightAndTheSameBitsEachTime) {
  const OperandGradientCase& test = kCases[GetParam()];
  SCOPED_TRACE(test.name);
  const compiler::CompiledProblem compiled = compiler::compile(problem_of(test));
  const AttentionProblem& problem = compiled.problem;
  const auto modules = [&](Direction direction) {
    return loaded(
        cuda::cached_kernels(render_all(attention_source(compiled, direction, portable_shape(problem, direction)))));
  };
  const auto forward =
      forward_plan(test::attention_call(compiled, Direction::kForward, portable_shape(problem, Direction::kForward)),
                   modules(Direction::kForward));
  const auto backward =
      backward_plan(test::attention_call(compiled, Direction::kBackward, portable_shape(problem, Direction::kBackward)),
                    modules(Direction::kBackward));
  const auto operands = operand_plan_of(compiled);

  expect_right_and_same_bits(test, compiled, operand_kernels_backend(), *forward, backward.get(), *operands,
                             "operands' gradients from tiles of scores");
}
INSTANTIATE_TEST_SUITE_P(Cases, TablesOfAttentionKernels, ::testing::Range(0, static_cast<int>(std::size(kCases))));

constexpr Timed kTimed[] = {
    {"a relative table", kRelativeTable, {}, DType::kBF16, true},
    {"a table of one entry", "table x: f32 rank 1\nvalue = score + x[0]", {}, DType::kBF16, true},
    {"a table of alternating keys", "table x: f32 rank 1\nvalue = score + x[kv_idx % 2]", {}, DType::kBF16, true},
    {"a table of keys without neighbours",
     "table x: f32 rank 1\nvalue = score + x[(q_idx * 31 + kv_idx * 17) % 257]",
     {},
     DType::kBF16,
     true},
    {"shared by batches", "operand x: f32 [h, q_idx, kv_idx]\nvalue = score + x", {}, DType::kBF16, true},
    {"shared by batches, causal",
     "operand x: f32 [h, q_idx, kv_idx]\nvalue = score + x\nkeep = kv_idx <= q_idx",
     {},
     DType::kBF16,
     true},
    {"shared by all", "operand x: f32 [q_idx, kv_idx]\nvalue = score + x", {}, DType::kBF16, true},
};

class TableTimes : public AttentionKernelTimes {};

/// In milliseconds, after one that is not timed.
template <class Plan>
double median_of(const Plan& plan, const Call& call, std::size_t workspace_bytes) {
  constexpr int kRounds = 9;
  const cuda::DeviceMemory memory(workspace_bytes);
  const auto workspace = cuda::aligned(std::span(static_cast<std::byte*>(memory.data()), memory.bytes()));
  std::vector<double> times;
  for (int i = 0; i <= kRounds; ++i) {
    cuda::DeviceTimer timer(cuda::own_stream());
    timer.start();
    plan.execute(call.backward, call.parameters, workspace);
    const double ms = timer.stop();
    if (i > 0) times.push_back(ms);
  }
  std::ranges::sort(times);
  return times[kRounds / 2];
}

TEST_P(TableTimes, BesideThePassOfCublas) {
  const Timed& timed = kTimed[GetParam()];
  const AttentionProblem problem = kernels::problem_of(timed);
  const compiler::CompiledProblem compiled = compiler::compile(problem);
  const auto operands = operand_plan_of(compiled);
  const auto pass = cuda::OperandGradients::build(compiled, std::vector<std::uint32_t>{0});
  if (builds_alone()) return;
  const Call& call = call_of(timed, problem);
  const PortableShape shape = portable_shape(problem, Direction::kForward);
  const auto forward =
      forward_plan(test::attention_call(compiled, Direction::kForward, shape),
                   loaded(cuda::cached_kernels(render_all(attention_source(compiled, Direction::kForward, shape)))));
  const cuda::DeviceMemory memory(forward->workspace_bytes());
  forward->execute(call.forward, call.parameters, {static_cast<std::byte*>(memory.data()), memory.bytes()});
  const double own = median_of(*operands, call, cuda::with_room_to_align(operands->workspace_bytes()));
  const double theirs = median_of(*pass, call, cuda::with_room_to_align(pass->workspace_bytes()));
  const std::string line = concat(R"({"kind": "time", "case": ")", timed.name, R"(", "direction": "operands", "ms": )",
                                  own, R"(, "pass_ms": )", theirs, "}");
  std::printf("%s\n", line.c_str());
  test::record_line(line);
}
INSTANTIATE_TEST_SUITE_P(Cases, TableTimes, ::testing::Range(0, static_cast<int>(std::size(kTimed))));

}  // namespace
}  // namespace scoremod::backend::kernels
