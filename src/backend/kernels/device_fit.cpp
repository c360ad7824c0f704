#include "backend/kernels/device_fit.hpp"

#include <algorithm>

#include "backend/unsupported.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::kernels {
namespace {

/// Copies to shared memory that run beside other work, and the products of matrices, begin with it.
constexpr int kOldestCapability = 80;

}  // namespace

std::vector<UnsupportedReason> device_objections(const DeviceProperties& device) {
  if (device.compute_capability >= kOldestCapability) return {};
  return {
      unsupported(Rule::kEngineRefused, concat("expected a device of compute capability 8.0 or later, found ",
                                               device.compute_capability / 10, ".", device.compute_capability % 10))};
}

std::vector<UnsupportedReason> memory_objections(const std::vector<KernelLaunch>& launches,
                                                 const DeviceProperties& device) {
  std::size_t wanted = 0;
  for (const KernelLaunch& launch : launches) wanted = std::max(wanted, launch.shared_bytes);
  if (wanted <= static_cast<std::size_t>(device.shared_memory_per_block)) return {};
  return {unsupported(Rule::kEngineRefused,
                      concat("expected ", wanted, " bytes of shared memory, found ", device.shared_memory_per_block))};
}

}  // namespace scoremod::backend::kernels
