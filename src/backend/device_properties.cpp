#include "backend/device_properties.hpp"

#include <nlohmann/json.hpp>

#include "base/fail.hpp"
#include "base/pages.hpp"

namespace scoremod::backend {
namespace {

/// cuDNN writes compute capability 9.0 as 900.
constexpr int kDeviceVersionsPerCapability = 10;

constexpr const char* kExpected =
    "expected the properties of a CUDA device as cuDNN writes them (a JSON object with deviceVer, multiProcessorCount, "
    "maxSharedMemoryPerBlockOptin, l2CacheSize and deviceName)";

}  // namespace

DeviceProperties DeviceProperties::parse(std::string_view json) {
  DeviceProperties properties;
  int version = 0;
  try {
    const auto document = nlohmann::json::parse(json);
    version = document.at("deviceVer").get<int>();
    properties.name = document.at("deviceName").get<std::string>();
    properties.multiprocessors = document.at("multiProcessorCount").get<std::int64_t>();
    properties.shared_memory_per_block = document.at("maxSharedMemoryPerBlockOptin").get<std::int64_t>();
    properties.l2_cache_bytes = document.at("l2CacheSize").get<std::int64_t>();
    properties.json = document.dump();
  } catch (const nlohmann::json::exception& error) {
    fail_argument(kExpected, ", found something else: ", error.what(),
                  "; " SCOREMOD_PAGE("reference/plans") " says how to get them");
  }
  if (version < 100 || properties.multiprocessors < 1 || properties.shared_memory_per_block < 1) {
    fail_argument(kExpected, ", found deviceVer ", version, ", multiProcessorCount ", properties.multiprocessors,
                  " and maxSharedMemoryPerBlockOptin ", properties.shared_memory_per_block);
  }
  properties.compute_capability = version / kDeviceVersionsPerCapability;
  properties.rates = device_rates(properties.json);
  return properties;
}

std::string DeviceProperties::label() const {
  return compute_capability == 0 ? name : concat(architecture(), " ", name);
}

std::string DeviceProperties::architecture() const { return architecture_name(compute_capability); }

std::string DeviceProperties::identity() const {
  return concat(architecture(), ", ", multiprocessors, " multiprocessors, ", shared_memory_per_block,
                " bytes of shared memory per block");
}

std::string architecture_name(int compute_capability) { return concat("sm_", compute_capability); }

}  // namespace scoremod::backend
