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

}  // namespace
}  // namespace scoremod::backend::cuda
