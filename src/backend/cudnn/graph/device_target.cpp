#include "backend/cudnn/graph/device_target.hpp"

#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "backend/cudnn/graph/library.hpp"
#include "backend/device_properties.hpp"
#include "base/fork_mutex.hpp"

namespace scoremod::backend::cudnn {

const PatternTable& DeviceTarget::patterns(RowClass rows) const {
  static auto& mutex = *new ForkMutex;
  static std::map<std::tuple<std::string, std::string, RowClass>, std::unique_ptr<const PatternTable>> tables;
  const std::scoped_lock lock(mutex);
  auto& table = tables[{architecture, cudnn_version, rows}];
  if (!table) table = std::make_unique<PatternTable>(shipped_pattern_table(architecture, cudnn_version, rows));
  return *table;
}

DeviceTarget device_target(const Target& target) {
  DeviceTarget device;
  device.ordinal = target.ordinal;
  device.device = plan_device(target.device);
  device.architecture = target.device.architecture();
  device.cudnn_version = version_text(library().cudnn_version);
  device.rates = target.device.rates;
  return device;
}

}  // namespace scoremod::backend::cudnn
