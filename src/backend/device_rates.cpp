#include "backend/device_rates.hpp"

#include <nlohmann/json.hpp>

#include "base/fail.hpp"

namespace scoremod::backend {

DeviceRates device_rates(std::string_view properties_json) {
  const DeviceRates h200;
  DeviceRates rates;
  try {
    const auto json = nlohmann::json::parse(properties_json);
    rates.multiprocessors = json.at("multiProcessorCount").get<double>();
    const double clock = json.value("smClockRateKHz", 0.0), memory_clock = json.value("memClockRateKHz", 0.0);
    const double bus_bits = json.value("memoryBusWidth", 0.0);
    if (clock > 0) rates.clock_khz = clock;
    // Two transfers a clock, of bits.
    rates.bytes_per_ms = 2 * memory_clock * bus_bits / 8;
  } catch (const nlohmann::json::exception& error) {
    fail_argument("expected a device's properties as 'scoremod device' writes them, found something else: ",
                  error.what());
  }
  if (!(rates.multiprocessors > 0))
    fail_argument("expected a device of at least 1 multiprocessor, found ", rates.multiprocessors);
  if (!(rates.bytes_per_ms > 0)) rates.bytes_per_ms = h200.bytes_per_ms * rates.multiprocessors / h200.multiprocessors;
  return rates;
}

}  // namespace scoremod::backend
