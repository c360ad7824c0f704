#pragma once

#include <string_view>

namespace scoremod::backend {

/// How fast a device is, as far as predicted times depend on it. The defaults are an NVIDIA H200's, which times were
/// measured on.
struct DeviceRates {
  double multiprocessors = 132;
  double clock_khz = 1980000;
  double bytes_per_ms = 2.0 * 3201000 * 6144 / 8;  ///< to and from its memory, at most

  bool operator==(const DeviceRates&) const = default;
};

/// The rates of a device by its properties as cuDNN writes them. Properties that are missing (earlier versions have no
/// width of the memory's bus) are scaled from an H200's by the number of multiprocessors. Throws
/// Error(kInvalidArgument) for text that is not a device's properties.
DeviceRates device_rates(std::string_view properties_json);

}  // namespace scoremod::backend
