#pragma once

#include <string>

namespace scoremod::backend::cuda {

/// On a machine without a CUDA driver, loads a stub driver into this process. cuDNN can then build plans for a device
/// elsewhere; nothing can be run. With a driver it does nothing. Throws Error(kEnvironment) if the stub driver is not
/// in scoremod/ beside libscoremod.so.
void load_stub_driver();

/// Why there is no driver, in the loader's words, where the stub driver is in its place; else empty. The CUDA runtime
/// would say that the driver is too old.
std::string missing_driver();

}  // namespace scoremod::backend::cuda
