#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "backend/device_rates.hpp"

namespace scoremod::backend {

/// Properties of a device that plans are made for, which need not be here. They are the JSON text that cuDNN itself
/// writes (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION), and the parts of it that scoremod reads.
struct DeviceProperties {
  std::string json;
  std::string name;            ///< "NVIDIA H200"; a label only
  int compute_capability = 0;  ///< 90 for sm_90
  std::int64_t multiprocessors = 0;
  std::int64_t shared_memory_per_block = 0;  ///< bytes, the most that a kernel may opt in to
  std::int64_t l2_cache_bytes = 0;
  DeviceRates rates;  ///< for predicted times

  /// Reads cuDNN's JSON. Throws Error(kInvalidArgument) for text that is not a device's properties.
  static DeviceProperties parse(std::string_view json);

  /// "sm_90 NVIDIA H200", or "host": the device in a store's files.
  std::string label() const;

  /// "sm_90": the family that selects lowering rules and pattern tables.
  std::string architecture() const;

  /// "sm_90, 132 multiprocessors, 232448 bytes of shared memory per block". Two devices have equal texts exactly if a
  /// plan built for one may run on the other. Clocks, memory size and place in the machine don't matter to a plan.
  std::string identity() const;
};

/// "sm_90" of 90.
std::string architecture_name(int compute_capability);

}  // namespace scoremod::backend
