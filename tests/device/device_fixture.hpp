#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/check.hpp"

#include "backend/cuda/device/cuda_memory.hpp"
#include "backend/cuda/device/device.hpp"

namespace scoremod::test {

/// Tests that need a GPU; they skip themselves, with the reason, where there is none.
class OnDevice : public ::testing::Test {
 protected:
  void SetUp() override;
};

/// A host buffer's copy on the device, between guard bands and as far from a multiple of 64 bytes as the buffer is.
class DeviceCopy {
 public:
  /// An input, or an output with its contents.
  DeviceCopy(const void* data, std::size_t bytes);
  /// Scratch, full of NaN.
  explicit DeviceCopy(std::size_t bytes);

  void* address() const { return static_cast<std::byte*>(memory_.data()) + first_; }
  /// Copies the contents back and fails the test when a guard band was written.
  void download(void* data) const;

 private:
  std::size_t first_ = 0, bytes_ = 0;
  backend::cuda::DeviceMemory memory_;
};

/// Appends a line of JSON for each output to the file SCOREMOD_DEVICE_RESULTS, if it is set. It fails the test for each
/// output above its tolerance. Outputs whose name does not begin with `prefix` are left out.
void record(const std::string& test_case, const std::string& kind, const CheckReport& report,
            const std::string& prefix);
/// Appends a line of JSON, an object, to that file.
void record_line(const std::string& json);

}  // namespace scoremod::test
