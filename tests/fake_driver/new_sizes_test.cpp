// Plans of new sizes, which are made like those of known ones: on the device that is current, and from any thread.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "scoremod/cache.hpp"
#include "scoremod/error.hpp"
#include "scoremod/open_attention.hpp"

#include "backend/cuda/device/cuda_memory.hpp"
#include "fake_cuda/fake_cuda.hpp"
#include "fake_driver/fake_device.hpp"

namespace scoremod {
namespace {

/// From the third size on, a plan is made like the last one.
constexpr std::int64_t kFirstKeys = 4096, kKnown = 2, kLike = 4;
constexpr int kNoDevice = 100;

class SizesOnDevices : public test::OnFakeDevice {
 protected:
  /// A decode step, whose keys are shared by as many CTAs as the device has multiprocessors for.
  static AttentionProblem decode(std::int64_t keys) {
    AttentionProblem problem = test::small_problem("value = score", DType::kBF16, 64);
    problem.backward = problem.stats = false;
    problem.seq_q = 1;
    problem.seq_kv = keys;
    return problem;
  }
  static CompileOptions options(NewSizes new_sizes) {
    CompileOptions options;
    options.backend = "kernels";
    options.new_sizes = new_sizes;
    return options;
  }
  static std::shared_ptr<const Attention> at(const OpenAttention& open, std::int64_t keys) {
    Sizes sizes;
    sizes.seq_kv = keys;
    return open.at(sizes);
  }
  static std::size_t planned_anew(std::int64_t keys) {
    return Attention::compile(decode(keys), options(NewSizes::kWait)).forward_workspace_bytes();
  }
  static void make_current(const char* device) { backend::cuda::cuda_memory().make_current(test::fake_device(device)); }
  static OpenAttention open() { return OpenAttention::compile(decode(kOpenSize), options(NewSizes::kServe)); }
};

TEST_F(SizesOnDevices, HavePlansOfTheDeviceThatIsCurrent) {
  const OpenAttention open = SizesOnDevices::open();
  std::size_t bytes = 0;
  for (const char* device : {"h200", "a100", "h200"}) {
    make_current(device);
    for (std::int64_t keys = kFirstKeys; keys < kFirstKeys + kLike; ++keys) {
      const auto attention = at(open, keys);
      EXPECT_EQ(attention->device(), test::fake_device(device));
      EXPECT_EQ(attention->forward_workspace_bytes(), planned_anew(keys)) << device << ", " << keys << " keys";
    }
    const std::size_t before = std::exchange(bytes, planned_anew(kFirstKeys));
    EXPECT_NE(bytes, before) << "both devices share the keys alike: the test says nothing";
  }
}

/// How often a plan was asked for by its key while a backward of new sizes was planned.
std::uint64_t looked_up(const AttentionProblem& sized, std::int64_t first_keys) {
  CompileOptions options;
  options.backend = "kernels";
  const auto fixed = [&](std::int64_t keys) {
    AttentionProblem problem = sized;
    problem.seq_kv = keys;
    return problem;
  };
  const OpenAttention open = OpenAttention::compile(fixed(kOpenSize), options);
  std::uint64_t lookups = 0;
  for (std::int64_t keys = first_keys; keys < first_keys + kLike; ++keys) {
    Sizes sizes;
    sizes.seq_kv = keys;
    options.new_sizes = NewSizes::kWait;
    const Attention anew = Attention::compile(fixed(keys), options);
    const PlanCacheStatistics before = cache_statistics().plans;
    const auto attention = open.at(sizes);
    const PlanCacheStatistics after = cache_statistics().plans;
    lookups = after.hits + after.misses - before.hits - before.misses;
    EXPECT_EQ(attention->backward_workspace_bytes(), anew.backward_workspace_bytes()) << keys << " keys";
  }
  return lookups;
}

TEST_F(SizesOnDevices, LookForBackwardsOnlyWhereOperandsHaveGradients) {
  make_current("a100");
  AttentionProblem problem =
      test::small_problem("operand slopes: f32 [h]\nvalue = score + slopes * f32(kv_idx - q_idx)", DType::kBF16, 64);
  problem.operands = {{"slopes", DType::kF32, {4}, {}, false}};
  EXPECT_EQ(looked_up(problem, 200), 0u);
  problem.operands.front().gradient = true;
  EXPECT_GT(looked_up(problem, 200), 0u);
}

TEST_F(SizesOnDevices, ArePlannedInThreadsWithoutAContext) {
  const OpenAttention open = SizesOnDevices::open();
  make_current("h200");
  for (std::int64_t keys = kFirstKeys; keys < kFirstKeys + kKnown; ++keys) at(open, keys);
  std::size_t bytes = 0;
  std::thread([&] {
    make_current("h200");
    bytes = at(open, kFirstKeys + kKnown)->forward_workspace_bytes();
  }).join();
  EXPECT_EQ(bytes, planned_anew(kFirstKeys + kKnown));
}

TEST_F(SizesOnDevices, ThatFailAreErrorsOfTheEnvironmentAndComeAgain) {
  const OpenAttention open = SizesOnDevices::open();
  make_current("h200");
  std::int64_t keys = kFirstKeys;
  for (; keys < kFirstKeys + kKnown; ++keys) at(open, keys);
  for (const char* function : {"cudaGetDevice", "cuCtxGetCurrent", "cuCtxGetId"}) {
    for (std::int64_t number = 0;; ++number) {
      test::fake_cuda::fail(function, number, kNoDevice);
      std::string message;
      try {
        at(open, keys);
      } catch (const Error& error) {
        EXPECT_TRUE(error.code() == ErrorCode::kEnvironment || error.code() == ErrorCode::kUnsupported);
        message = error.what();
      }
      if (test::fake_cuda::stop_failing().empty()) break;
      EXPECT_TRUE(message.empty() || message.find(function) != std::string::npos) << message;
      EXPECT_EQ(at(open, keys)->forward_workspace_bytes(), planned_anew(keys));
      ++keys;
    }
  }
}

/// A mask that is no band, and the same in every call: a plan has a kernel find its tiles, once.
AttentionProblem documents(std::int64_t seq_q, std::int64_t seq_kv) {
  AttentionProblem problem =
      test::small_problem("value = score\nkeep = q_idx // 100 == kv_idx // 100", DType::kBF16, 64);
  problem.backward = problem.stats = false;
  problem.seq_q = seq_q;
  problem.seq_kv = seq_kv;
  return problem;
}

TEST_F(SizesOnDevices, WaitForNoBlockMask) {
  make_current("a100");
  const OpenAttention open = OpenAttention::compile(documents(130, kOpenSize), options(NewSizes::kServe));
  for (std::int64_t keys = kFirstKeys; keys < kFirstKeys + kLike; ++keys) {
    test::fake_cuda::take_launches();
    test::fake_cuda::take_waits();
    at(open, keys);
    EXPECT_EQ(test::fake_cuda::take_waits(), 0u) << keys << " keys";
    EXPECT_FALSE(test::fake_cuda::take_launches().empty()) << "no block mask: the test says nothing";
  }
}

/// A function of CUDA that fails shows whether a call asked for it. The device comes to an event once it was asked for.
TEST_F(SizesOnDevices, HaveCallsThatFollowTheirBlockMask) {
  test::DeviceCalls calls(documents(130, 300), test::fake_device("a100"));
  test::fake_cuda::take_waits();
  test::fake_cuda::fail("cudaStreamWaitEvent", 0, kNoDevice);
  try {
    calls.forward();
    ADD_FAILURE() << "expected that the call's stream waits";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("cudaStreamWaitEvent"), std::string::npos) << error.what();
  }
  calls.forward();
  EXPECT_EQ(test::fake_cuda::stop_failing(), "cudaStreamWaitEvent");
  test::fake_cuda::fail("cuEventQuery", 0, kNoDevice);
  calls.forward();
  EXPECT_EQ(test::fake_cuda::stop_failing(), "") << "a call asked for what is known to be done";
  EXPECT_EQ(test::fake_cuda::take_waits(), 0u);
}

}  // namespace
}  // namespace scoremod
