#pragma once

#include <cuda.h>

#include "backend/cuda/device/library.hpp"

// Expanded before it is made a string: cuda.h renames functions to their newest version.
#define SCOREMOD_NAME(name) #name
#define SCOREMOD_EXPANDED_NAME(name) SCOREMOD_NAME(name)
/// A function of the driver, found once: SCOREMOD_DRIVER(cuCtxGetCurrent)(&context).
#define SCOREMOD_DRIVER(name)                                                                       \
  ([]() -> decltype(&::name) {                                                                      \
    static const auto f = reinterpret_cast<decltype(&::name)>(::scoremod::backend::cuda::symbol_of( \
        ::scoremod::backend::cuda::library().driver, SCOREMOD_EXPANDED_NAME(name)));                \
    return f;                                                                                       \
  }())

namespace scoremod::backend::cuda {

/// Throws Error(kEnvironment) with the driver's own text unless the call succeeded.
void check_driver(CUresult status, const char* call);

}  // namespace scoremod::backend::cuda
