#include "backend/memory_space.hpp"

#include <gtest/gtest.h>

#include "scoremod/error.hpp"

namespace scoremod::backend {
namespace {

/// Three devices. It notes the current one.
class ThreeDevices final : public MemorySpace {
 public:
  MemoryKind kind() const override { return MemoryKind::kCuda; }
  std::size_t alignment() const override { return 1; }
  void* allocate(std::size_t, void*) const override { return nullptr; }
  void release(void*, void*) const noexcept override {}
  void copy_in(void*, const void*, std::size_t) const override {}
  void copy_out(void*, const void*, std::size_t) const override {}
  void wait(void*) const override {}
  int current_device() const override { return current; }
  DeviceProperties describe() const override { return {}; }
  void make_current(int device) const override {
    if (device < 0 || device > 2) throw Error(ErrorCode::kInvalidArgument, "no such device");
    current = device;
    ++changes;
  }
  std::string objection(const void*, int) const override { return {}; }

  mutable int current = 1;
  mutable int changes = 0;
};

TEST(DeviceScope, MakesADeviceCurrentAndThenTheOneBefore) {
  const ThreeDevices devices;
  {
    const DeviceScope outer(devices, 2);
    EXPECT_EQ(devices.current, 2);
    {
      const DeviceScope inner(devices, 0);
      EXPECT_EQ(devices.current, 0);
    }
    EXPECT_EQ(devices.current, 2);
  }
  EXPECT_EQ(devices.current, 1);
}

TEST(DeviceScope, ChangesNothingForTheCurrentDeviceOrNone) {
  const ThreeDevices devices;
  {
    const DeviceScope same(devices, 1);
    const DeviceScope none(devices, std::nullopt);
    EXPECT_EQ(devices.current, 1);
  }
  EXPECT_EQ(devices.changes, 0);
}

TEST(DeviceScope, ADeviceThatIsNotThereLeavesTheCurrentOne) {
  const ThreeDevices devices;
  EXPECT_THROW(DeviceScope(devices, 7), Error);
  EXPECT_EQ(devices.current, 1);
}

TEST(DeviceScope, TheHostIsDeviceZero) {
  EXPECT_NO_THROW(DeviceScope(host_memory(), 0));
  EXPECT_THROW(DeviceScope(host_memory(), 1), Error);
}

}  // namespace
}  // namespace scoremod::backend
