// Each fault that the fake driver is there to find is planted, and found.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "scoremod/error.hpp"

#include "backend/cuda/device/cuda_memory.hpp"
#include "backend/cuda/device/device.hpp"
#include "backend/cuda/device/own_stream.hpp"
#include "backend/cuda/device/runtime_call.hpp"
#include "backend/cuda/modules/kernel_module.hpp"
#include "backend/cuda/modules/runtime_compiler.hpp"
#include "fake_driver/fake_device.hpp"
#include "fake_driver/guarded_heap.hpp"

namespace scoremod::backend::cuda {
namespace {

namespace fake_cuda = test::fake_cuda;

constexpr std::size_t kParameterBytes = 1664;
constexpr const char* kSource = R"(
struct alignas(64) Parameter { const float* data[208]; };
extern "C" __global__ void of_a_struct(Parameter) {}
extern "C" __global__ void of_two(const float*, int) {}
extern "C" __global__ void of_three(int, int, int) {}
extern "C" __global__ void __launch_bounds__(128) bounded() {}
extern "C" __global__ void with_static_memory(float* to) {
  __shared__ float values[4096];
  values[threadIdx.x] = to[threadIdx.x];
  __syncthreads();
  to[threadIdx.x] = values[127 - threadIdx.x];
}
)";

class NegativeControls : public test::OnFakeDevice {
 protected:
  void SetUp() override {
    OnFakeDevice::SetUp();
    if (IsSkipped()) return;
    cuda_memory().make_current(kDevice);
    module_ = std::make_unique<KernelModule>(compile_kernels(kSource, 80));
  }
  void TearDown() override {
    module_.reset();
    OnFakeDevice::TearDown();
  }

  const KernelModule& module() const { return *module_; }
  KernelModule::Kernel kernel(const char* name) const { return module_->kernel(name); }

  /// Parameters of a kernel without a struct.
  static void launch(KernelModule::Kernel kernel, const KernelArguments& arguments, int threads = 128) {
    KernelModule::launch(kernel, {1, 1, 1}, threads, arguments, own_stream());
  }
  static void launch_struct(KernelModule::Kernel kernel, std::size_t shared_bytes, const void* parameter) {
    KernelModule::launch(kernel, {1, 1, 1}, 128, shared_bytes, parameter, own_stream());
  }

  /// The fake driver finds this in the call, and fails it.
  static void expect_found(const std::string& violation, const std::function<void()>& call) {
    EXPECT_THROW(call(), Error) << violation;
    const std::vector<std::string> found = fake_cuda::take_violations();
    ASSERT_FALSE(found.empty()) << violation;
    EXPECT_NE(found.front().find(violation), std::string::npos) << found.front();
  }

  static constexpr int kDevice = 1;  // an A100

 private:
  std::unique_ptr<KernelModule> module_;
};

TEST_F(NegativeControls, AParameterBlockThatIsTooShort) {
  const test::GuardedHeap guarded;
  const std::vector<std::byte> whole(kParameterBytes), without_the_last(kParameterBytes - 64);
  launch_struct(kernel("of_a_struct"), 0, whole.data());
  expect_found("of_a_struct: not all of the 1664 bytes of parameter 0 are memory",
               [&] { launch_struct(kernel("of_a_struct"), 0, without_the_last.data()); });
}

TEST_F(NegativeControls, TooFewParameters) {
  const test::GuardedHeap guarded;
  launch(kernel("of_three"), KernelArguments().add(1).add(2).add(3));
  expect_found("of_three: expected 3 parameters, found fewer",
               [&] { launch(kernel("of_three"), KernelArguments().add(1)); });
}

TEST_F(NegativeControls, TooMuchSharedMemory) {
  const std::vector<std::byte> parameter(kParameterBytes);
  const KernelModule::Kernel kernel = this->kernel("of_a_struct");
  constexpr std::size_t kFree = std::size_t{48} * 1024, kMost = std::size_t{163} * 1024;
  launch_struct(kernel, kFree, parameter.data());
  expect_found("49153 bytes of shared memory, at most 49152",
               [&] { launch_struct(kernel, kFree + 1, parameter.data()); });
  expect_found("166913 bytes of shared memory, at most 166912",
               [&] { KernelModule::allow_shared_memory(kernel, kMost + 1); });
  KernelModule::allow_shared_memory(kernel, kMost);
  launch_struct(kernel, kMost, parameter.data());
}

TEST_F(NegativeControls, StaticSharedMemoryBesideDynamic) {
  const DeviceMemory memory(512);
  void* const data = memory.data();
  launch_struct(kernel("with_static_memory"), 32768, reinterpret_cast<const std::byte*>(&data));
  expect_found("with_static_memory: 49168 bytes of shared memory, at most 49152",
               [&] { launch_struct(kernel("with_static_memory"), 32784, reinterpret_cast<const std::byte*>(&data)); });
}

TEST_F(NegativeControls, MoreThreadsThanABlockMayHave) {
  launch(kernel("bounded"), {}, 128);
  expect_found("bounded: 160 threads, at most 128", [&] { launch(kernel("bounded"), {}, 160); });
  const DeviceMemory memory(64);
  expect_found("of_two: 1056 threads along axis 0",
               [&] { launch(kernel("of_two"), KernelArguments().add(memory.data()).add(1), 1056); });
}

TEST_F(NegativeControls, PointersToOtherMemory) {
  const auto launch_with = [&](const void* data) { launch(kernel("of_two"), KernelArguments().add(data).add(1)); };
  const void* freed = nullptr;
  {
    const DeviceMemory memory(64);
    launch_with(static_cast<std::byte*>(memory.data()) + 63);
    expect_found("byte 0 of the parameters points to memory that is not allocated",
                 [&] { launch_with(static_cast<std::byte*>(memory.data()) + 64); });
    freed = memory.data();
  }
  expect_found("points to memory that is not allocated", [&] { launch_with(freed); });
  int on_host = 0;
  expect_found("points to memory of the host", [&] { launch_with(&on_host); });
  cuda_memory().make_current(kDevice + 1);
  const DeviceMemory others(64);
  cuda_memory().make_current(kDevice);
  expect_found("points to memory of device 2", [&] { launch_with(others.data()); });
}

TEST_F(NegativeControls, CopiesBeyondAnAllocation) {
  DeviceMemory memory(64);
  std::vector<std::byte> host(65);
  memory.upload(host.data(), 64);
  expect_found("the 65 bytes are not all of an allocation", [&] { memory.upload(host.data(), 65); });
  expect_found("the 65 bytes are not all of an allocation", [&] { memory.download(host.data(), 65); });
}

TEST_F(NegativeControls, CallsThatEndACapture) {
  cudaStream_t stream = nullptr;
  check_runtime(SCOREMOD_CUDART(cudaStreamCreateWithFlags)(&stream, cudaStreamNonBlocking), "stream");
  check_runtime(SCOREMOD_CUDART(cudaStreamBeginCapture)(stream, cudaStreamCaptureModeGlobal), "begin");
  const DeviceMemory memory(64);  // in relaxed mode
  void* data = nullptr;
  expect_found("a stream captures", [&] { check_runtime(SCOREMOD_CUDART(cudaMalloc)(&data, 64), "cudaMalloc"); });
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(SCOREMOD_CUDART(cudaStreamEndCapture)(stream, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(fake_cuda::take_violations().size(), 1u);
  SCOREMOD_CUDART(cudaStreamDestroy)(stream);
}

TEST_F(NegativeControls, WhatIsNotReleased) {
  const std::size_t modules = left().modules;
  {
    const DeviceMemory memory(64);
    const KernelModule other(compile_kernels(kSource, 80));
    const DeviceTimer timer(own_stream());
    EXPECT_EQ(left().modules, modules + 1);
    EXPECT_EQ(left().allocations, 1u);
    EXPECT_EQ(left().events, 2u);
  }
  EXPECT_EQ(left().modules, modules);
  EXPECT_EQ(left().allocations, 0u);
  EXPECT_EQ(left().events, 0u);
}

/// A host that reads the device's memory crashes, as with a real one.
TEST_F(NegativeControls, AHostThatReadsTheDevicesMemory) {
  const DeviceMemory memory(64);
  EXPECT_DEATH({ ASSERT_EQ(*static_cast<volatile const char*>(memory.data()), 0); }, "");
}

}  // namespace
}  // namespace scoremod::backend::cuda
