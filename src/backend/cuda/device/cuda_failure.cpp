#include "backend/cuda/device/cuda_failure.hpp"

#include <algorithm>
#include <array>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <string>

#include "scoremod/context_lost.hpp"

#include "backend/cuda/device/driver_call.hpp"
#include "backend/cuda/device/runtime_call.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::cuda {
namespace {

/// "This leaves the process in an inconsistent state and any further CUDA work will return the same error. To continue
/// using CUDA, the process must be terminated and relaunched" (driver_types.h). A reset of the device does not help.
constexpr std::array kLosses{
    214,  // an uncorrectable ECC error
    220,  // an uncorrectable NVLink error
    226,  // a contained error of memory
    700,  // an illegal address
    702,  // a launch timeout
    710,  // a device-side assert
    714,  // a hardware stack error
    715,  // an illegal instruction
    716,  // a misaligned address
    717,  // an invalid address space
    718,  // an invalid program counter
    719,  // a launch failure
    721,  // a leak of tensor memory
    911,  // an external device
};

/// "13.0" of 13000.
std::string version_text(int version) { return concat(version / 1000, ".", version % 1000 / 10); }

int driver_version() {
  int version = 0;
  SCOREMOD_DRIVER(cuDriverGetVersion)(&version);
  return version;
}

int runtime_version() {
  int version = 0;
  SCOREMOD_CUDART(cudaRuntimeGetVersion)(&version);
  return version;
}

}  // namespace

void fail_cuda(const char* call, int code, const char* text) {
  const std::string failed = concat(call, ": ", text == nullptr ? "an error without a text" : text);
  if (std::ranges::find(kLosses, code) != kLosses.end()) {
    throw ContextLost(
        concat(failed, " (CUDA error ", code,
               "): the CUDA context is lost, by this call or by earlier work on the device, and nothing brings it back "
               "in this process; end the process and start it again"));
  }
  if (code == cudaErrorInsufficientDriver) {
    // Within a major version, a runtime takes every driver.
    fail_environment(failed, ": expected a driver for CUDA ", runtime_version() / 1000,
                     ".0 or later, found one for CUDA ", version_text(driver_version()),
                     "; update the NVIDIA driver, or install the CUDA runtime of its version");
  }
  if (code == CUDA_ERROR_UNSUPPORTED_PTX_VERSION) {
    fail_environment(
        failed,
        ": expected a driver for the CUDA of the NVRTC that compiled the kernels, or a later one, found one for CUDA ",
        version_text(driver_version()), "; update the NVIDIA driver, or install the NVRTC of its version");
  }
  fail_environment(failed);
}

}  // namespace scoremod::backend::cuda
