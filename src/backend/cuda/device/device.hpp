#pragma once

#include <string>

#include "backend/device_properties.hpp"

namespace scoremod::backend::cuda {

/// A CUDA device as scoremod sees it. Every call throws Error(kEnvironment) with CUDA's own text on failure.
struct DeviceInfo {
  int ordinal = 0;
  std::string name;
  int compute_capability = 0;  ///< 90 for sm_90
};

/// The calling thread's current device.
DeviceInfo current_device();
int current_device_ordinal();
/// 90 for sm_90. Much cheaper than current_device().
int current_compute_capability();

/// The properties of the current device, read once for each device. `json` is empty: cuDNN alone writes it.
const DeviceProperties& describe_current_device();

/// Measures device time on a stream between start() and stop().
class DeviceTimer {
 public:
  explicit DeviceTimer(void* stream);
  ~DeviceTimer();
  DeviceTimer(const DeviceTimer&) = delete;
  DeviceTimer& operator=(const DeviceTimer&) = delete;
  void start();
  /// Milliseconds since start(), once the device has got here.
  double stop();

 private:
  void* stream_;
  void* begin_ = nullptr;
  void* end_ = nullptr;
};

}  // namespace scoremod::backend::cuda
