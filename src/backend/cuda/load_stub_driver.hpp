#pragma once

#include <string>

namespace scoremod::backend::cuda {

/// Where the machine has no CUDA driver, puts a stub driver in its place for this process, so that cuDNN can build
/// plans for a device that is elsewhere; nothing can be run. Where there is a driver, does nothing. Throws
/// Error(kEnvironment) when the stub driver is not where the build and the installation put it: in scoremod/ beside
/// libscoremod.so.
void load_stub_driver();

/// Why there is no driver, in the loader's words, where the stub driver is in its place; else empty. The CUDA runtime
/// would say that the driver is too old.
std::string missing_driver();

}  // namespace scoremod::backend::cuda
