// Calls whose stream captures a graph: what they may do meanwhile, and what they say where the capture is lost. XLA
// captures so, in the thread-local mode, and needs to be told.
#include <cuda.h>
#include <optional>
#include <string>
#include <thread>

#include <gmock/gmock.h>

#include "scoremod/attention_cache.hpp"
#include "scoremod/capture_failed.hpp"
#include "scoremod/error.hpp"

#include "attention_state.hpp"
#include "backend/cuda/device/cuda_memory.hpp"
#include "backend/cuda/device/runtime_call.hpp"
#include "fake_cuda/fake_cuda.hpp"
#include "fake_driver/fake_device.hpp"

namespace scoremod {
namespace {

namespace fake_cuda = test::fake_cuda;

using backend::cuda::check_runtime;
using ::testing::HasSubstr;

AttentionProblem forward_problem() {
  AttentionProblem problem = test::small_problem("value = score", DType::kBF16, 64);
  problem.backward = problem.stats = false;
  return problem;
}

class FailedCaptures : public test::OnFakeDevice {
 protected:
  void SetUp() override {
    OnFakeDevice::SetUp();
    if (IsSkipped()) return;
    allow_leftovers();  // a graph's kernels stay until the process ends
    backend::cuda::cuda_memory().make_current(kDevice);
    check_runtime(SCOREMOD_CUDART(cudaStreamCreateWithFlags)(&stream_, cudaStreamNonBlocking), "stream");
    calls_.emplace(forward_problem(), kDevice);
    workspace_ = calls_->workspace();
    fake_cuda::take_launches();
  }
  void TearDown() override {
    fake_cuda::stop_failing();
    if (stream_ != nullptr) SCOREMOD_CUDART(cudaStreamDestroy)(stream_);
    OnFakeDevice::TearDown();
  }

  void begin() {
    check_runtime(SCOREMOD_CUDART(cudaStreamBeginCapture)(stream_, cudaStreamCaptureModeThreadLocal), "begin");
  }
  /// Whether there is a graph.
  bool end() {
    cudaGraph_t graph = nullptr;
    const bool is_whole = SCOREMOD_CUDART(cudaStreamEndCapture)(stream_, &graph) == cudaSuccess;
    if (is_whole) SCOREMOD_CUDART(cudaGraphDestroy)(graph);
    if (!is_whole) fake_cuda::take_violations();  // the fake says that somebody ends a capture that is no more
    return is_whole;
  }
  /// As another library does in a thread of its own.
  static void wait_for_the_device() {
    std::thread([] {
      backend::cuda::cuda_memory().make_current(kDevice);
      EXPECT_EQ(SCOREMOD_CUDART(cudaDeviceSynchronize)(), cudaErrorStreamCaptureUnsupported);
    }).join();
  }
  void forward() { calls_->forward(stream_, workspace_); }

  void expect_ended() {
    try {
      forward();
      ADD_FAILURE() << "expected an error";
    } catch (const CaptureFailed& error) {
      EXPECT_EQ(error.code(), ErrorCode::kEnvironment);
      EXPECT_THAT(error.what(), HasSubstr("was ended from outside"));
      EXPECT_THAT(error.what(), HasSubstr("torch.cuda.synchronize()"));
    }
    EXPECT_FALSE(end());
  }

  static constexpr int kDevice = 1;  // NVRTC takes the shortest for its kernels
  cudaStream_t stream_ = nullptr;
  std::optional<test::DeviceCalls> calls_;
  Buffer workspace_;
};

TEST_F(FailedCaptures, BeforeACall) {
  begin();
  wait_for_the_device();
  expect_ended();
  EXPECT_TRUE(fake_cuda::take_launches().empty());
}

TEST_F(FailedCaptures, WhileACallLaunches) {
  begin();
  fake_cuda::fail("cuLaunchKernel", 0, 0, fake_cuda::Failing::kEndsCaptures);
  expect_ended();
  EXPECT_EQ(fake_cuda::stop_failing(), "cuLaunchKernel");
}

/// The third question is the one behind the launches.
TEST_F(FailedCaptures, BehindTheLaunches) {
  begin();
  fake_cuda::fail("cudaStreamIsCapturing", 2, 0, fake_cuda::Failing::kEndsCaptures);
  expect_ended();
  EXPECT_EQ(fake_cuda::stop_failing(), "cudaStreamIsCapturing");
  EXPECT_FALSE(fake_cuda::take_launches().empty());
}

TEST_F(FailedCaptures, ByTheCallItself) {
  begin();
  fake_cuda::fail("cuLaunchKernel", 0, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  try {
    forward();
    ADD_FAILURE() << "expected an error";
  } catch (const CaptureFailed& error) {
    EXPECT_EQ(error.code(), ErrorCode::kEnvironment);
    EXPECT_THAT(error.what(), HasSubstr("too many resources requested for launch"));
  }
  end();
  EXPECT_NO_THROW(forward());
}

/// A library such as cuDNN may load a kernel when it is launched first, which a capture's own thread may not do.
TEST_F(FailedCaptures, AreNoneForTheSakeOfKernelsThatAreLoadedLate) {
  begin();
  forward();
  EXPECT_TRUE(end());
  const auto captured = fake_cuda::take_launches();
  ASSERT_FALSE(captured.empty());
  for (const auto& launch : captured) EXPECT_TRUE(launch.is_relaxed) << launch.kernel;
  forward();
  for (const auto& launch : fake_cuda::take_launches()) EXPECT_FALSE(launch.is_relaxed) << launch.kernel;
}

/// The state of one of XLA's custom calls.
class FailedCapturesOfXla : public FailedCaptures {
 protected:
  void SetUp() override {
    FailedCaptures::SetUp();
    if (IsSkipped()) return;
    state_.emplace(forward_problem(), CompileOptions{}, [](const CompileOptions&) {
      return cached_attention(forward_problem(), test::kernels_on(kDevice));
    });
    state_->prepare(kDevice);
  }

  void run() {
    state_->run(kDevice, [&](const jax::Prepared& prepared) {
      ForwardArgs args = calls_->forward_args();
      args.options.stream = stream_;
      prepared.attention->forward(args, workspace_);
    });
  }
  void initialize() { state_->prepare_within(kDevice, &jax::Prepared::forward_workspace, workspace_.bytes); }

  std::optional<jax::AttentionState> state_;
};

/// XLA keeps a graph that was recorded in part, and would run it.
TEST_F(FailedCapturesOfXla, EndTheirProgram) {
  begin();
  run();
  EXPECT_TRUE(end());
  EXPECT_NO_THROW(initialize());
  begin();
  wait_for_the_device();
  EXPECT_THROW(run(), CaptureFailed);
  EXPECT_FALSE(end());
  for (int run = 0; run < 2; ++run) {
    try {
      initialize();
      ADD_FAILURE() << "expected an error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kEnvironment);
      EXPECT_THAT(error.what(), HasSubstr("call jax.clear_caches()"));
      EXPECT_THAT(error.what(), HasSubstr("was ended from outside"));
    }
  }
}

TEST_F(FailedCapturesOfXla, AreNoOtherFailures) {
  fake_cuda::fail("cuLaunchKernel", 0, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  EXPECT_THROW(run(), Error);
  EXPECT_EQ(fake_cuda::stop_failing(), "cuLaunchKernel");
  EXPECT_NO_THROW(initialize());
  EXPECT_NO_THROW(run());
}

}  // namespace
}  // namespace scoremod
