#pragma once

#include <cstddef>
#include <string>

namespace scoremod::backend::cudnn {

/// What was found of the CUDA runtime, the driver and cuDNN at run time.
struct LibraryState {
  bool available = false;
  std::string reason;  ///< when not available: what could not be loaded, in the loader's own words
  void* cudnn = nullptr;
  void* cudart = nullptr;
  std::size_t cudnn_version = 0;  ///< as cudnnGetVersion() gives it: 91900 is 9.19.0
};

/// Loads the driver, the CUDA runtime and cuDNN once for the process, from the loader's path. Never throws.
const LibraryState& library();

/// The address of a function of the CUDA runtime; throws Error(kEnvironment) when it is missing.
void* cudart_symbol(const char* name);

}  // namespace scoremod::backend::cudnn
