#pragma once

#include <string>

#include "backend/cuda/modules/runtime_compiler.hpp"

namespace scoremod::backend::cuda {

/// The result of compile_kernels() for the current device, cached by the whole source in memory, and in the plan store
/// for later processes. A hit needs no NVRTC. Throws what compile_kernels() throws.
std::string cached_kernels(const std::string& source, Instructions instructions = Instructions::kCommon);

}  // namespace scoremod::backend::cuda
