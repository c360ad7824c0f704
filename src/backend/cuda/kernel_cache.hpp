#pragma once

#include <string>

#include "backend/cuda/runtime_compiler.hpp"

namespace scoremod::backend::cuda {

/// What compile_kernels() gives for the current device: kept in memory for the process and in the plan store for the
/// next one, by the whole source. Needs no NVRTC for what is kept. Throws what compile_kernels() throws.
std::string cached_kernels(const std::string& source, Instructions instructions = Instructions::kCommon);

}  // namespace scoremod::backend::cuda
