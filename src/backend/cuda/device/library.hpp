#pragma once

#include <span>
#include <string>

namespace scoremod::backend::cuda {

/// A library that was looked for at run time.
struct SharedLibrary {
  void* handle = nullptr;  ///< null when it could not be loaded
  std::string reason;      ///< then: why, in the loader's own words
};

/// The first of these libraries that the process has loaded already, from wherever it was (a framework loads those of
/// Python's packages by their paths). A null handle without a reason where none is. Never throws.
SharedLibrary loaded_library(std::span<const char* const> names);

/// That one, or else the first that loads from the loader's path. Two versions of CUDA's libraries in one process do
/// not know each other's handles and contexts. It stays open for the life of the process, because threads and exit
/// handlers of CUDA's libraries must never outlive their code. Never throws.
SharedLibrary open_library(std::span<const char* const> names);

/// The folder that a library was loaded from, with a slash at its end; empty for a null handle.
std::string folder_of(const SharedLibrary& library);

/// The address of a function; throws Error(kEnvironment) when the library is not there or lacks it.
void* symbol_of(const SharedLibrary& library, const char* name);

/// The CUDA driver and runtime that were found.
struct LibraryState {
  bool available = false;
  std::string reason;  ///< if not available: the library that could not be loaded, in the loader's own words
  SharedLibrary driver;
  SharedLibrary runtime;
};

/// Loads the driver and the CUDA runtime once for the process. Never throws.
const LibraryState& library();
/// Says that a driver may be there by now, so that library() looks again if it found none.
void look_for_driver_again();

/// The compiler of generated kernels, and the library of matrix products: from the loader's path, or else from the
/// folder of the CUDA runtime. Each is loaded once for the process, when it is first asked for; neither needs a driver
/// to load. Never throws.
const SharedLibrary& nvrtc_library();
const SharedLibrary& cublas_library();
/// Keeps the NVRTC that somebody else has loaded, if any, for the life of the process. Never throws.
void keep_loaded_nvrtc();

/// The address of a function of the CUDA runtime; throws Error(kEnvironment) when it is missing.
void* cudart_symbol(const char* name);

}  // namespace scoremod::backend::cuda
