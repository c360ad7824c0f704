#include "backend/cuda/device/load_stub_driver.hpp"

#include <dlfcn.h>
#include <mutex>

#include "backend/cuda/device/library.hpp"
#include "base/companion_file.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::cuda {
namespace {

constexpr const char* kFile = "stub_driver.so";

std::mutex mutex;

/// Empty until the stub driver is loaded; under `mutex`.
std::string& reason_of_missing_driver() {
  static std::string reason;
  return reason;
}

}  // namespace

void load_stub_driver() {
  const std::scoped_lock lock(mutex);
  // Left open: if this is the stub driver of an earlier call, or a driver, it is the one to use.
  if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) != nullptr) return;
  const std::string missing = dlerror();
  std::string reason;
  for (const auto& file : companion_file(kFile)) {
    // Its SONAME is libcuda.so.1, by which everything that looks for a driver finds it from now on.
    if (dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) {
      reason_of_missing_driver() = concat("no CUDA driver: ", missing);
      return look_for_driver_again();
    }
    reason += concat(reason.empty() ? "" : "; ", dlerror());
  }
  fail_environment("no CUDA driver, and scoremod's stub driver could not be loaded: ", reason,
                   "; install scoremod with its folder lib/scoremod");
}

std::string missing_driver() {
  const std::scoped_lock lock(mutex);
  return reason_of_missing_driver();
}

}  // namespace scoremod::backend::cuda
