// All that the host does for the attention kernels on a device: from its properties to the launches and the graphs.
#include <gmock/gmock.h>

#include "scoremod/error.hpp"

#include "backend/cuda/device/cuda_memory.hpp"
#include "backend/cuda/device/runtime_call.hpp"
#include "fake_cuda/fake_cuda.hpp"
#include "fake_driver/fake_device.hpp"
#include "fake_driver/guarded_heap.hpp"

namespace scoremod {
namespace {

/// NVRTC takes seconds for each: a device for each kind of kernels, and its limits.
struct Case {
  const char* device;
  const char* name;
  AttentionProblem problem;
};

AttentionProblem with_gradient(AttentionProblem problem, const char* operand, std::vector<std::int64_t> shape) {
  problem.operands = {{operand, DType::kF32, std::move(shape), {}, true}};
  return problem;
}

AttentionProblem forward_of(AttentionProblem problem, std::int64_t seq_q) {
  problem.backward = false;
  problem.seq_q = seq_q;
  return problem;
}

/// Several CTAs share a head's keys, in a workspace.
AttentionProblem decode() {
  AttentionProblem problem = forward_of(test::small_problem("value = score", DType::kBF16, 64), 1);
  problem.seq_kv = 4096;
  return problem;
}

/// Found by a random problem: the kernel that adds up these gradients apart has 48 KB of dynamic shared memory beside 1
/// KB of static. Without asking, a launch has 48 KB of both together. The kernel is chosen since nothing reads of_keys.
AttentionProblem operand_queries() {
  AttentionProblem problem = test::small_problem(
      "operand of_heads: f32 [b, h]\noperand of_keys: f32 [h, kv_idx]\n"
      "value = (score * 0.1 + of_heads) * score\nkeep = kv_idx * h < 4",
      DType::kF16, 64);
  problem.dim_qk = 40;
  problem.operands = {{"of_heads", DType::kF32, {problem.batch, problem.heads_q}, {}, true},
                      {"of_keys", DType::kF32, {problem.heads_q, problem.seq_kv}, {}, true}};
  return problem;
}

/// Scales of rows of q, and of MXFP8's blocks of k and v.
AttentionProblem block_scales() {
  AttentionProblem problem = forward_of(test::small_problem("value = tanh(score)", DType::kE4M3, 64), 130);
  problem.operands = {{"descale_q", DType::kF32, {problem.batch, problem.heads_q, problem.seq_q, 1}, {}, false},
                      {"descale_k", DType::kF32, {problem.batch, problem.heads_kv, problem.seq_kv, 2}, {}, false},
                      {"descale_v",
                       DType::kF32,
                       {problem.batch, problem.heads_kv, (problem.seq_kv + 31) / 32, problem.dim_v},
                       {},
                       false}};
  return problem;
}

std::vector<Case> cases() {
  using test::small_problem;
  const AttentionProblem slopes =
      small_problem("operand slopes: f32 [h]\nvalue = score + slopes * f32(kv_idx - q_idx)", DType::kBF16, 128);
  const AttentionProblem bias =
      small_problem("operand bias: f32 [h, q_idx, kv_idx]\nvalue = score + bias", DType::kF16, 64);
  return {
      {"h200", "fused_backward", with_gradient(slopes, "slopes", {4})},
      {"h200", "decode", decode()},
      {"h200", "operand_queries", operand_queries()},
      {"a100", "bias", with_gradient(bias, "bias", {4, 130, 200})},
      {"b200", "wide_heads", forward_of(small_problem("value = score", DType::kBF16, 512), 130)},
      {"a100", "causal", small_problem("value = score\nkeep = kv_idx <= q_idx", DType::kBF16, 64)},
      {"h200", "block_scales", block_scales()},
      {"h200", "float8", forward_of(small_problem("value = tanh(score)", DType::kE4M3, 64), 130)},
      {"rtx5090", "float32", forward_of(small_problem("value = tanh(score)", DType::kF32, 32), 130)},
  };
}

class HostPath : public test::OnFakeDevice, public ::testing::WithParamInterface<int> {};

TEST_P(HostPath, KeepsToTheRulesOfTheDevice) {
  const Case of = cases()[static_cast<std::size_t>(GetParam())];
  const int device = test::fake_device(of.device);
  const std::int64_t guarded = test::GuardedHeap::guarded(), left_out = test::GuardedHeap::left_out();
  test::DeviceCalls calls(of.problem, device);
  test::fake_cuda::take_launches();
  calls.run();
  const auto launches = test::fake_cuda::take_launches();
  EXPECT_GE(launches.size(), of.problem.backward ? 2u : 1u);
  for (const auto& launch : launches) {
    EXPECT_EQ(launch.device, device) << launch.kernel;
    EXPECT_GT(launch.parameter_bytes, 0u) << launch.kernel;
  }
  EXPECT_GT(test::GuardedHeap::guarded(), guarded);
  EXPECT_EQ(test::GuardedHeap::left_out(), left_out);
}

INSTANTIATE_TEST_SUITE_P(All, HostPath, ::testing::Range(0, static_cast<int>(cases().size())), [](const auto& tested) {
  const Case of = cases()[static_cast<std::size_t>(tested.param)];
  return std::string(of.device) + "_" + of.name;
});

using backend::cuda::check_runtime;

class CapturedCalls : public test::OnFakeDevice {
 protected:
  void SetUp() override {
    OnFakeDevice::SetUp();
    if (IsSkipped()) return;
    backend::cuda::cuda_memory().make_current(kDevice);
    check_runtime(SCOREMOD_CUDART(cudaStreamCreateWithFlags)(&stream_, cudaStreamNonBlocking), "stream");
  }
  void TearDown() override {
    if (executable_ != nullptr) SCOREMOD_CUDART(cudaGraphExecDestroy)(executable_);
    if (stream_ != nullptr) SCOREMOD_CUDART(cudaStreamDestroy)(stream_);
    OnFakeDevice::TearDown();
  }

  /// Captures what `call` enqueues, into `executable`.
  template <class Enqueue>
  void capture(const Enqueue& enqueue) {
    check_runtime(SCOREMOD_CUDART(cudaStreamBeginCapture)(stream_, cudaStreamCaptureModeGlobal), "begin");
    enqueue();
    cudaGraph_t graph = nullptr;
    check_runtime(SCOREMOD_CUDART(cudaStreamEndCapture)(stream_, &graph), "end");
    check_runtime(SCOREMOD_CUDART(cudaGraphInstantiate)(&executable_, graph, 0), "instantiate");
    SCOREMOD_CUDART(cudaGraphDestroy)(graph);
  }

  static constexpr int kDevice = 1;  // NVRTC takes the shortest for its kernels
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

TEST_F(CapturedCalls, AreReplayedAfterTheAttentionIsGone) {
  allow_leftovers();  // a graph's kernels stay until the process ends
  test::DeviceCalls calls(forward_of(test::small_problem("value = score", DType::kBF16, 64), 130), kDevice);
  const Buffer workspace = calls.workspace();
  test::fake_cuda::take_launches();
  capture([&] { calls.forward(stream_, workspace); });
  const auto captured = test::fake_cuda::take_launches();
  calls.drop_attention();
  drop_plans();
  EXPECT_GT(test::fake_cuda::live().modules, 0u);
  check_runtime(SCOREMOD_CUDART(cudaGraphLaunch)(executable_, stream_), "launch");
  const auto replayed = test::fake_cuda::take_launches();
  ASSERT_EQ(replayed.size(), captured.size());
  for (std::size_t i = 0; i < replayed.size(); ++i) EXPECT_EQ(replayed[i].kernel, captured[i].kernel);
}

/// A graph can't depend on work outside of it.
TEST_F(CapturedCalls, WaitForTheBlockMaskOfTheirPlan) {
  allow_leftovers();  // a graph's kernels stay until the process ends
  test::DeviceCalls calls(
      forward_of(test::small_problem("value = score\nkeep = q_idx // 100 == kv_idx // 100", DType::kBF16, 64), 130),
      kDevice);
  const Buffer workspace = calls.workspace();
  test::fake_cuda::take_waits();
  capture([&] { calls.forward(stream_, workspace); });
  EXPECT_EQ(test::fake_cuda::take_waits(), 1u);
  EXPECT_TRUE(test::fake_cuda::take_violations().empty());
}

TEST_F(CapturedCalls, WithoutAWorkspaceOfTheCallersAreRefused) {
  test::DeviceCalls calls(decode(), kDevice);
  ASSERT_GT(calls.workspace().bytes, 0u);
  check_runtime(SCOREMOD_CUDART(cudaStreamBeginCapture)(stream_, cudaStreamCaptureModeGlobal), "begin");
  try {
    calls.forward(stream_);
    ADD_FAILURE() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kEnvironment);
    EXPECT_TRUE(std::string(error.what()).starts_with("CUDA graph capture needs a workspace from the caller"));
  }
  cudaGraph_t graph = nullptr;
  check_runtime(SCOREMOD_CUDART(cudaStreamEndCapture)(stream_, &graph), "end");
  SCOREMOD_CUDART(cudaGraphDestroy)(graph);
}

}  // namespace
}  // namespace scoremod
