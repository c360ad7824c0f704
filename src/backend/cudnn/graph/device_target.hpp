#pragma once

#include <string>

#include "backend/candidate.hpp"
#include "backend/cudnn/graph/plan_key.hpp"
#include "backend/cudnn/patterns/pattern_table.hpp"

namespace scoremod::backend::cudnn {

/// A device, as far as it decides lowering and plans.
struct DeviceTarget {
  int ordinal = 0;
  PlanDevice device;
  std::string architecture;   ///< "sm_90"
  std::string cudnn_version;  ///< "9.19.0"
  DeviceRates rates;          ///< for predicted times

  /// The known patterns of this version and architecture.
  const PatternTable& patterns(RowClass rows) const;
};

/// A planner's target in cuDNN's terms, with the cuDNN that is loaded.
DeviceTarget device_target(const Target& target);

}  // namespace scoremod::backend::cudnn
