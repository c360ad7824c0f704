#include "backend/device_rates.hpp"

#include <gtest/gtest.h>

#include "scoremod/error.hpp"

namespace scoremod::backend {
namespace {

TEST(DeviceRates, AreReadFromPropertiesAndCompletedWhereTheseLackThem) {
  EXPECT_EQ(device_rates(R"({"multiProcessorCount": 132, "smClockRateKHz": 1980000, "memClockRateKHz": 3201000,
                             "memoryBusWidth": 6144})"),
            DeviceRates());
  const DeviceRates half = device_rates(R"({"multiProcessorCount": 66, "smClockRateKHz": 1500000})");
  EXPECT_EQ(half.clock_khz, 1500000);
  EXPECT_EQ(half.bytes_per_ms, DeviceRates().bytes_per_ms / 2);
}

TEST(DeviceRates, RefuseWhatAreNoProperties) {
  for (const char* text : {"", "{}", "[]", R"({"multiProcessorCount": "many"})", R"({"multiProcessorCount": 0})"}) {
    EXPECT_THROW(device_rates(text), Error) << text;
  }
}

}  // namespace
}  // namespace scoremod::backend
