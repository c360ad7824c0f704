#pragma once

#include <cstddef>
#include <string>

namespace scoremod::backend::cudnn {

/// What was found of CUDA and cuDNN at run time.
struct LibraryState {
  bool available = false;
  std::string reason;  ///< when not available: what could not be loaded, in the loader's own words
  void* cudnn = nullptr;
  std::size_t cudnn_version = 0;  ///< as cudnnGetVersion() gives it: 91900 is 9.19.0
};

/// Loads the driver, the CUDA runtime and cuDNN once for the process, from the loader's path. Never throws.
const LibraryState& library();

/// "9.19.0" of 91900.
std::string version_text(std::size_t cudnn_version);

}  // namespace scoremod::backend::cudnn
