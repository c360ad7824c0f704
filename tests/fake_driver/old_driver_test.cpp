// A driver that is older than the CUDA runtime, or than the NVRTC that compiled the kernels.
#include <string>

#include <gmock/gmock.h>

#include "scoremod/attention.hpp"
#include "scoremod/error.hpp"

#include "backend/cuda/device/cuda_memory.hpp"
#include "fake_cuda/fake_cuda.hpp"
#include "fake_driver/fake_device.hpp"

namespace scoremod {
namespace {

namespace fake_cuda = test::fake_cuda;

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kInsufficientDriver = 35, kUnsupportedPtx = 222;

class OldDriver : public test::OnFakeDevice {
 protected:
  static int device() { return test::fake_device("a100"); }
  static AttentionProblem problem() { return test::small_problem("value = score", DType::kBF16, 16); }
  static void use() { test::DeviceCalls(problem(), device()).run(); }
  static std::string driver() {
    const std::int64_t version = fake_cuda::described(0, "driverVer");
    return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
  }

  /// The error of a use on the device, while one on the host works.
  static Error error_of_use() {
    AttentionProblem on_host = problem();
    on_host.dtype = DType::kF32;
    EXPECT_EQ(Attention::compile(on_host).backend(), "cpu");
    try {
      use();
    } catch (const Error& error) {
      return error;
    }
    ADD_FAILURE() << "the use succeeded";
    return {ErrorCode::kBug, ""};
  }
};

TEST_F(OldDriver, OfTheRuntimeIsNoDeviceThatABackendRunsOn) {
  test::DeviceCalls before(problem(), device());
  fake_cuda::fail("", 0, kInsufficientDriver, fake_cuda::Failing::kRuntime);
  const std::string said =
      ": CUDA driver version is insufficient for CUDA runtime version: expected a driver for CUDA 13.0 or later, found "
      "one for CUDA " +
      driver() + "; update the NVIDIA driver, or install the CUDA runtime of its version";
  const Error refused = error_of_use();
  EXPECT_EQ(refused.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(refused.what(), HasSubstr(said));
  try {
    before.forward();
    FAIL() << "the call succeeded";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kEnvironment);
    EXPECT_THAT(error.what(), EndsWith(said));
  }
  EXPECT_EQ(fake_cuda::last_error(), 0);
  EXPECT_THAT(fake_cuda::stop_failing(), StartsWith("cuda"));
  EXPECT_NO_THROW(before.run());
  EXPECT_NO_THROW(use());
}

TEST_F(OldDriver, OfTheCompilerIsAnErrorOfTheEnvironment) {
  for (const std::int64_t number : {0, 1}) {  // the forward's module, and the backward's
    fake_cuda::fail("cuModuleLoadData", number, kUnsupportedPtx);
    const Error failed = error_of_use();
    EXPECT_EQ(failed.code(), ErrorCode::kEnvironment);
    EXPECT_EQ(
        std::string(failed.what()),
        "cuModuleLoadData: the provided PTX was compiled with an unsupported toolchain.: expected a driver for the "
        "CUDA of the NVRTC that compiled the kernels, or a later one, found one for CUDA " +
            driver() + "; update the NVIDIA driver, or install the NVRTC of its version");
    EXPECT_EQ(fake_cuda::stop_failing(), "cuModuleLoadData");
    drop_plans();
    EXPECT_NO_THROW(use());
    drop_plans();
  }
}

}  // namespace
}  // namespace scoremod
