#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "backend/cuda/device/library.hpp"

namespace scoremod::backend::cudnn {

/// The cuDNN that was found at run time.
struct LibraryState {
  bool available = false;
  std::string reason;  ///< if not available: the library that could not be loaded, in the loader's own words
  void* cudnn = nullptr;
  std::size_t cudnn_version = 0;  ///< as cudnnGetVersion() gives it: 91900 is 9.19.0
};

/// Loads cuDNN (open_cudnn()) once for the process; its version is known without a driver. Never throws.
const LibraryState& library();

/// Throws Error(kEnvironment) unless cuDNN, the CUDA runtime and a driver are there, with the loader's words.
void require_library();

/// libcudnn.so.9: the one that the process has loaded, or the one beside any of cuDNN's other libraries that it has
/// loaded. libcudnn.so.9 would call that version. Otherwise it is the loader's. Never throws.
cuda::SharedLibrary open_cudnn();

/// The folders of cuDNN, of the compiler that it uses and of the CUDA runtime, as this process has them.
std::vector<std::string> library_folders();

/// "9.19.0" of 91900.
std::string version_text(std::size_t cudnn_version);

}  // namespace scoremod::backend::cudnn
