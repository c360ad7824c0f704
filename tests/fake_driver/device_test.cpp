// A device's properties from its attributes: also linked with a runtime of CUDA 12.
#include "backend/cuda/device/device.hpp"

#include <fstream>
#include <iterator>

#include "scoremod/error.hpp"

#include "backend/cuda/device/cuda_memory.hpp"
#include "fake_driver/fake_device.hpp"

namespace scoremod::backend::cuda {
namespace {

class DeviceDiscovery : public test::OnFakeDevice {
 protected:
  bool compiles() const override { return false; }
};

class FakeDevices : public DeviceDiscovery, public ::testing::WithParamInterface<int> {};

TEST_P(FakeDevices, AreDescribedByTheirAttributesAsByTheirFiles) {
  std::ifstream file(test::description_of(GetParam()));
  const auto expected = DeviceProperties::parse(std::string(std::istreambuf_iterator<char>(file), {}));
  cuda_memory().make_current(GetParam());
  const DeviceProperties& found = describe_current_device();
  EXPECT_EQ(found.name, expected.name);
  EXPECT_EQ(found.identity(), expected.identity());
  EXPECT_EQ(found.l2_cache_bytes, expected.l2_cache_bytes);
  EXPECT_EQ(found.rates.multiprocessors, expected.rates.multiprocessors);
  EXPECT_EQ(found.rates.clock_khz, expected.rates.clock_khz);
  EXPECT_EQ(found.rates.bytes_per_ms, expected.rates.bytes_per_ms);
  const DeviceInfo info = current_device();
  EXPECT_EQ(info.ordinal, GetParam());
  EXPECT_EQ(info.name, expected.name);
  EXPECT_EQ(info.compute_capability, expected.compute_capability);
}

INSTANTIATE_TEST_SUITE_P(All, FakeDevices, ::testing::Range(0, static_cast<int>(test::fake_devices().size())),
                         [](const auto& tested) {
                           return test::fake_devices()[static_cast<std::size_t>(tested.param)];
                         });

TEST_F(DeviceDiscovery, RefusesADeviceBeyondTheLast) {
  try {
    cuda_memory().make_current(5);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_STREQ(error.what(), "device: expected a CUDA device from 0 to 4, found 5");
  }
}

TEST_F(DeviceDiscovery, KnowsTheMemoryOfADeviceByItsAllocation) {
  constexpr std::size_t kBytes = 4096;
  constexpr int kUnknownError = 999;
  cuda_memory().make_current(0);
  const OwnedMemory first(cuda_memory(), kBytes), second(cuda_memory(), kBytes);
  const auto objection = [](const void* data, int device = 0) { return cuda_memory().objection(data, device); };
  const auto inside = [](const OwnedMemory& memory, std::size_t at) { return memory.data() + at; };
  EXPECT_EQ(objection(first.data()), "");
  // A call that asked CUDA again would fail.
  test::fake_cuda::fail("cudaPointerGetAttributes", 0, kUnknownError);
  for (const std::size_t at : {std::size_t{1}, kBytes - 1}) EXPECT_EQ(objection(inside(first, at)), "");
  EXPECT_THROW(objection(second.data()), Error) << "memory of another allocation was taken as known";
  EXPECT_EQ(test::fake_cuda::stop_failing(), "cudaPointerGetAttributes");
  constexpr const char* kUnknown = "memory that CUDA does not know: of the host, or of a device and freed by now";
  EXPECT_EQ(objection(inside(first, kBytes)), kUnknown) << "behind its end is nobody's memory";
  EXPECT_EQ(objection(inside(first, 1), 1), "memory of device 0 where device 1 runs the call");
  int on_host = 0;
  EXPECT_EQ(objection(&on_host), kUnknown);
}

}  // namespace
}  // namespace scoremod::backend::cuda
