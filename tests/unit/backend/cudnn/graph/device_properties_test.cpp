#include "backend/device_properties.hpp"

#include <gtest/gtest.h>

#include "scoremod/error.hpp"

namespace scoremod::backend::cudnn {
namespace {

constexpr const char* kHopper = R"({"deviceVer":900,"multiProcessorCount":132,"maxSharedMemoryPerBlockOptin":232448,
                                    "deviceName":"NVIDIA H200","l2CacheSize":62914560,"totalGlobalMem":150109880320})";

std::string message_of(const char* json) {
  try {
    DeviceProperties::parse(json);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(DeviceProperties, ReadsWhatPlansDependOn) {
  const auto device = DeviceProperties::parse(kHopper);
  EXPECT_EQ(device.name, "NVIDIA H200");
  EXPECT_EQ(device.compute_capability, 90);
  EXPECT_EQ(device.architecture(), "sm_90");
  EXPECT_EQ(device.identity(), "sm_90, 132 multiprocessors, 232448 bytes of shared memory per block");
}

TEST(DeviceProperties, KeepsEveryFieldForCudnn) {
  EXPECT_NE(DeviceProperties::parse(kHopper).json.find("\"totalGlobalMem\":150109880320"), std::string::npos);
}

TEST(DeviceProperties, IdentityIgnoresWhatDoesNotMatterToAPlan) {
  const auto other = DeviceProperties::parse(
      R"({"deviceVer":900,"multiProcessorCount":132,"maxSharedMemoryPerBlockOptin":232448,"deviceName":"H100","l2CacheSize":1})");
  EXPECT_EQ(other.identity(), DeviceProperties::parse(kHopper).identity());
  const auto slice = DeviceProperties::parse(
      R"({"deviceVer":900,"multiProcessorCount":16,"maxSharedMemoryPerBlockOptin":232448,"deviceName":"H100","l2CacheSize":1})");
  EXPECT_NE(slice.identity(), other.identity());
}

TEST(DeviceProperties, SaysWhatIsWrongWithOtherText) {
  EXPECT_NE(message_of("").find("expected the properties of a CUDA device"), std::string::npos);
  EXPECT_NE(message_of("[1, 2]").find("expected the properties of a CUDA device"), std::string::npos);
  EXPECT_NE(message_of(R"({"deviceVer":900})").find("deviceName"), std::string::npos);
  EXPECT_NE(message_of(R"({"deviceVer":"nine","deviceName":"x"})").find("type must be number"), std::string::npos);
  EXPECT_NE(
      message_of(
          R"({"deviceVer":9,"multiProcessorCount":0,"maxSharedMemoryPerBlockOptin":1,"l2CacheSize":1,"deviceName":"x"})")
          .find("found deviceVer 9, multiProcessorCount 0"),
      std::string::npos);
}

}  // namespace
}  // namespace scoremod::backend::cudnn
