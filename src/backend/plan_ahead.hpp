#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.hpp"
#include "base/bytes.hpp"

namespace scoremod::backend {

/// A plan that was built for a device elsewhere, as its backend's plan store keeps it.
struct AheadPlan {
  Direction direction = Direction::kForward;
  bool trial = false;  ///< of the small problem whose run on the device decides whether the plan before it is used
  bool built = false;
  std::vector<std::string> reasons;  ///< why there is none
  std::vector<std::string> notes;    ///< what it consists of, and what is not known of it
  std::size_t workspace_bytes = 0;
  double milliseconds = 0;  ///< of building
  // What plans::Record holds, for a record of kind kPlan.
  std::string engine;
  std::string architecture;
  std::string label;
  Bytes key;
  Bytes payload;
};

/// Builds the plans of a problem (forward, and backward where it has one) for the device with these properties, which
/// need not be on this machine, nor a driver. The properties are the text that device_properties_here() gives on a
/// machine with the device. Throws Error(kInvalidArgument) for other text, kUnsupported when no backend of this build
/// plans ahead, and kEnvironment when libraries are missing. Defined in registry.cpp.
std::vector<AheadPlan> plan_ahead(const compiler::CompiledProblem& problem, std::string_view device_properties);

/// The properties of the calling thread's current device. Throws Error(kEnvironment) when there is none.
std::string device_properties_here();

}  // namespace scoremod::backend
