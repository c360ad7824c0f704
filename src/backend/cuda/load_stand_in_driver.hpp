#pragma once

namespace scoremod::backend::cuda {

/// Where the machine has no CUDA driver, puts a stand-in in its place for this process, so that cuDNN can build plans
/// for a device that is elsewhere; nothing can be run. Where there is a driver, does nothing. Throws
/// Error(kEnvironment) when the stand-in is not where the build and the installation put it: in scoremod/ beside
/// libscoremod.so.
void load_stand_in_driver();

}  // namespace scoremod::backend::cuda
