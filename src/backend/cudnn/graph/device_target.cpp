#include "backend/cudnn/graph/device_target.hpp"

#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "backend/cuda/device.hpp"
#include "backend/cudnn/graph/engine.hpp"
#include "backend/cudnn/graph/handle.hpp"
#include "backend/cudnn/graph/library.hpp"
#include "backend/device_properties.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::cudnn {
namespace {

DeviceTarget read_target(int ordinal) {
  const DeviceProperties properties = device_properties(builder_handle());
  DeviceTarget target;
  target.ordinal = ordinal;
  target.device = plan_device(properties);
  target.architecture = properties.architecture();
  target.cudnn_version = version_text(library().cudnn_version);
  target.rates = properties.rates;
  return target;
}

}  // namespace

const FormTable& DeviceTarget::forms(RowClass rows) const {
  static std::mutex mutex;
  static std::map<std::tuple<std::string, std::string, RowClass>, std::unique_ptr<const FormTable>> tables;
  const std::scoped_lock lock(mutex);
  auto& table = tables[{architecture, cudnn_version, rows}];
  if (!table) table = std::make_unique<FormTable>(shipped_form_table(architecture, cudnn_version, rows));
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

const DeviceTarget& current_target() {
  require_library();
  static std::mutex mutex;
  static std::map<int, std::unique_ptr<const DeviceTarget>> targets;
  const int ordinal = cuda::current_device_ordinal();
  const std::scoped_lock lock(mutex);
  auto& target = targets[ordinal];
  if (!target) target = std::make_unique<DeviceTarget>(read_target(ordinal));
  return *target;
}

}  // namespace scoremod::backend::cudnn
