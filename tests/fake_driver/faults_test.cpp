// Each call of CUDA fails once, and then all after one: an error of the right kind that names the call, nothing left,
// and right calls after it.
#include <set>
#include <string>
#include <utility>

#include "scoremod/error.hpp"

#include "backend/cuda/device/cuda_memory.hpp"
#include "backend/cuda/device/device.hpp"
#include "backend/cuda/device/own_stream.hpp"
#include "fake_cuda/fake_cuda.hpp"
#include "fake_driver/fake_device.hpp"

namespace scoremod {
namespace {

namespace fake_cuda = test::fake_cuda;

constexpr int kOutOfMemory = 2, kUnknownError = 999;

class Faults : public test::OnFakeDevice {
 protected:
  /// One that no other test uses: its first use is here.
  static int device() { return test::fake_device("l40s"); }

  static void use() { test::DeviceCalls(test::small_problem("value = score", DType::kBF16, 16), device()).run(); }

  /// The message of a use's error; empty without one.
  static std::string message_of_use() {
    try {
      use();
    } catch (const Error& error) {
      // A device that cannot be described is none that a backend supports.
      EXPECT_TRUE(error.code() == ErrorCode::kEnvironment || error.code() == ErrorCode::kUnsupported) << error.what();
      return error.what();
    }
    return "";
  }

  /// A use while a call of a function fails: the function's name, and what the error said.
  static std::pair<std::string, std::string> use_with_fault(const std::string& function, std::int64_t number,
                                                            int code) {
    fake_cuda::fail(function, number, code);
    const std::string message = message_of_use();
    return {fake_cuda::stop_failing(), message};
  }
};

/// A use does not need them: they free memory behind it, and make the caller's device current again.
const std::set<std::string> kMayFailSilently{"cudaFreeAsync", "cudaGetDeviceCount", "cudaSetDevice"};

TEST_F(Faults, OfEachCallAreErrorsThatNameIt) {
  // Calls that are made once for a device or a thread, in the order of a first use.
  for (const char* function : {"cuDeviceGetName", "cudaDeviceGetAttribute", "cuModuleLoadData", "cuModuleGetFunction",
                               "cudaStreamCreateWithFlags", "cudaMemPoolCreate", "cudaMemPoolSetAttribute"}) {
    const auto [failed, message] = use_with_fault(function, 0, kUnknownError);
    EXPECT_EQ(failed, function);
    EXPECT_NE(message.find(failed + ": unknown error"), std::string::npos) << message;
    EXPECT_EQ(fake_cuda::last_error(), 0) << failed;
  }
  std::int64_t number = 0;
  for (;; ++number) {
    const auto [failed, message] = use_with_fault("", number, kUnknownError);
    if (failed.empty()) break;
    const bool is_silent = message.empty() && kMayFailSilently.contains(failed);
    EXPECT_TRUE(is_silent || message.find(failed + ": unknown error") != std::string::npos)
        << number << ": " << message;
    EXPECT_EQ(fake_cuda::last_error(), 0) << failed;
  }
  EXPECT_GT(number, 50);
  EXPECT_EQ(message_of_use(), "");
}

TEST_F(Faults, OfMemoryNameTheWayOut) {
  for (std::int64_t number = 0;; ++number) {
    const auto [failed, message] = use_with_fault("cudaMallocFromPoolAsync", number, kOutOfMemory);
    if (failed.empty()) {
      EXPECT_GT(number, 5);
      break;
    }
    EXPECT_TRUE(message.starts_with("the device has no ")) << message;
    EXPECT_TRUE(message.ends_with(" bytes of memory left; free some or use a smaller problem")) << message;
    EXPECT_EQ(fake_cuda::last_error(), 0);
  }
}

TEST_F(Faults, OfTimersLeaveNoEvents) {
  backend::cuda::cuda_memory().make_current(device());
  for (const std::int64_t number : {0, 1}) {
    fake_cuda::fail("cudaEventCreate", number, kUnknownError);
    void* const stream = backend::cuda::own_stream();
    EXPECT_THROW(backend::cuda::DeviceTimer{stream}, Error);
    EXPECT_EQ(fake_cuda::stop_failing(), "cudaEventCreate");
  }
}

}  // namespace
}  // namespace scoremod
